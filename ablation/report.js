for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, i) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[i].dataset.s ?? row.cells[i].textContent.trim();
      const by = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "") || 0;
        const d = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return up ? d : -d;
      };
      body.append(...[...body.rows].sort(by));
    });
  });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const seen = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", seen);
    document.querySelectorAll(`.chart [data-v="${button.dataset.v}"]`).forEach((e) => e.classList.toggle("hidden", !seen));
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = true)));
