"use strict";
// Without this script the table stands as it was written, and nothing else is lost.
(() => {
  const status = document.getElementById("sorted");
  const value = (row, column) => {
    const text = row.cells[column].dataset.value;
    if (text === undefined) return null;
    return column === 0 ? text : Number(text);
  };
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const sort = (column) => {
      const head = heads[column];
      const now = head.getAttribute("aria-sort");
      const order = !now ? head.dataset.first : now === "ascending" ? "descending" : "ascending";
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => [row, value(row, column)]);
      // What has no number stays at the end either way.
      rows.sort(([, a], [, b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
      body.append(...rows.map(([row]) => row));
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      if (status) status.textContent = `Sorted by ${head.textContent.trim()}, ${order}.`;
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(column));
    });
  }

  const closed = [];
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details:not([open])")) {
      one.open = true;
      closed.push(one);
    }
  });
  addEventListener("afterprint", () => closed.splice(0).forEach((one) => (one.open = false)));
})();
