// What a page that holds the search wants of it, said before the search is loaded.

export const wanted = {
  language: null,
  html: (text) => text, // as the web page's policy lets it be parsed
  styled: () => Promise.resolve(), // once the styles are there that the first view does without
};
