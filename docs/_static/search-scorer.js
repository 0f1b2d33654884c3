// What search results are ranked by: a page whose title is just what was typed comes first, then pages of single ops that have its name.
var Scorer = {
  score: function (result) {
    const [page, title, , , score] = result;
    const typed = new URLSearchParams(window.location.search).get("q") || "";
    const plain = (text) => text.toLowerCase().replace(/<[^>]*>|`/g, "").trim();
    if (plain(title) === plain(typed)) return score + 1000;
    if (!page.startsWith("op/")) return score;
    if (plain(title).includes(plain(typed))) return score + 100;
    // torch.scatter_add is looked up as a name of torch.Tensor.scatter_add_.
    const ends = (text) => { const names = plain(text).replace(/_+$/, "").split("."); return names[0] + " " + names[names.length - 1]; };
    return ends(title) === ends(typed) ? score + 50 : score;
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
