// What search results are ranked by: a page whose title is just what was typed comes first, then pages of single ops.
var Scorer = {
  score: function (result) {
    const [page, title, , , score] = result;
    const typed = new URLSearchParams(window.location.search).get("q") || "";
    const plain = (text) => text.toLowerCase().replace(/<[^>]*>|`/g, "").trim();
    if (plain(title) === plain(typed)) return score + 1000;
    return page.startsWith("op/") && plain(title).includes(plain(typed)) ? score + 100 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
