// The ways in which files come: chosen, photographed, pasted, dropped.

/** Hand all files that come to `take(files, how they came)`. */
export function takeFiles(take) {
  for (const [id, how] of [["file-input", "chosen"], ["camera-input", "chosen"]]) {
    document.getElementById(id).addEventListener("change", ({ target }) => {
      if (target.files.length) take([...target.files], how);
      target.value = ""; // so that the same file can be chosen again
    });
  }
  addEventListener("paste", ({ clipboardData }) => {
    if (document.activeElement.matches("input:not([type=file]), textarea")) return;
    if (clipboardData.files.length || clipboardData.types.length) {
      take([...clipboardData.files], "pasted");
    }
  });
  takeDrops(take);
}

function takeDrops(take) {
  let ending;
  const carries = (event) => event.dataTransfer.types.some((type) =>
    type === "Files" || type === "text/uri-list");
  const rest = () => document.body.classList.remove("dragging");
  addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "copy";
    document.body.classList.add("dragging");
    clearTimeout(ending); // dragover repeats while something hovers; dragleave cannot be trusted
    ending = setTimeout(rest, 300);
  });
  addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    rest();
    take([...event.dataTransfer.files], "dropped");
  });
}
