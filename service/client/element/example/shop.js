// What a shop does with answers and decisions.

const search = document.querySelector("vouch-search");
const heard = document.getElementById("heard");

search.addEventListener("vouch-answer", ({ detail: { verdict, results } }) => {
  heard.textContent = verdict === "match"
    ? `We have it: ${results[0].label ?? results[0].id}.` : `The answer was ${verdict}.`;
});

search.addEventListener("vouch-decision", ({ detail: { kind, item } }) => {
  heard.textContent = `Decision: ${kind}${item ? `, ${item.id}` : ""}.`;
});
