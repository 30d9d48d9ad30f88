// German, by the English text. {0}, {1} are the values in their order.

export const GERMAN = {};
