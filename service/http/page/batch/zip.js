// A ZIP file whose entries are not compressed (PKWARE's APPNOTE 6.3.10): pictures are compressed already.

const UTF8 = 0x0800; // a flag: the entry's name is UTF-8
const VERSION = 20; // 2.0, which reads it

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit += 1) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) crc = CRC[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return ~crc >>> 0;
}

/** Numbers of [size in bytes, value], little-endian. */
function record(...fields) {
  const bytes = new DataView(new ArrayBuffer(fields.reduce((all, [size]) => all + size, 0)));
  let at = 0;
  for (const [size, value] of fields) {
    if (size === 2) bytes.setUint16(at, value, true);
    else bytes.setUint32(at, value, true);
    at += size;
  }
  return bytes;
}

/** Time and date as MS-DOS counts them, in the local time of the computer. */
const dosTime = (now) => [
  [2, (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1)],
  [2, ((now.getFullYear() - 1980) << 9) | ((now.getMonth() + 1) << 5) | now.getDate()],
];

/** A ZIP file to which entries are added one by one. Only pieces of it are held, which the browser
 * moves to the disk when they are many. At most 65,535 entries and 4 GB. */
export class Zip {
  #time = dosTime(new Date());
  #entries = [];
  #directory = [];
  #size = 0;

  /** Add a file under a relative path, which no other entry has. */
  async add(path, blob) {
    const bytes = new Uint8Array(await blob.arrayBuffer());
    const name = new TextEncoder().encode(path);
    const described = [ // the same in both places
      [2, VERSION], [2, UTF8], [2, 0], ...this.#time,
      [4, crc32(bytes)], [4, bytes.length], [4, bytes.length], [2, name.length], [2, 0],
    ];
    const header = record([4, 0x04034b50], ...described);
    this.#directory.push(
      record([4, 0x02014b50], [2, VERSION], ...described, [2, 0], [2, 0], [2, 0], [4, 0], [4, this.#size]), name);
    this.#entries.push(header, name, blob);
    this.#size += header.byteLength + name.length + bytes.length;
  }

  /** The file. */
  end() {
    const directory = new Blob(this.#directory);
    const n = this.#directory.length / 2;
    const end = record([4, 0x06054b50], [2, 0], [2, 0], [2, n], [2, n], [4, directory.size], [4, this.#size], [2, 0]);
    return new Blob([...this.#entries, directory, end], { type: "application/zip" });
  }
}
