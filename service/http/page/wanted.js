// What a page that holds the search wants of it, said before the search is loaded.

export const wanted = { language: null };
