// The styles of answers and dialogs, which the first view does without.

import accuracy from "../../http/page/accuracy/accuracy.css";
import batch from "../../http/page/batch/batch.css";
import browse from "../../http/page/browse/browse.css";
import collect from "../../http/page/collect/collect.css";
import filters from "../../http/page/filters/filters.css";
import look from "../../http/page/look/look.css";

export default [batch, accuracy, browse, collect, filters, look].join("\n");
