// What a visitor's browser remembers of them; nothing, where it lets no page remember, as in some
// frames.

export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // then it holds until the page is left
  }
}
