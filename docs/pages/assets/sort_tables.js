// Sorts the tables of a page that stand in an element of the class "sortable", by a click on a head.
document.addEventListener("DOMContentLoaded", () => {
  const number = (text) => {
    const match = text.replace(/−/g, "-").match(/-?\d[\d,]*\.?\d*/)
    return match ? parseFloat(match[0].replace(/,/g, "")) : NaN
  }
  const compare = (a, b) => {
    const x = number(a), y = number(b)
    if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b)
    return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y
  }
  for (const table of document.querySelectorAll(".sortable table")) {
    const heads = [...table.tHead.rows[0].cells]
    heads.forEach((head, column) => {
      const button = document.createElement("button")
      button.append(...head.childNodes)
      head.append(button)
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort")
        const isUp = now ? now === "descending" : /^((mean )?rank$|method$|clients worse|diverged)/.test(head.textContent.trim()) // scores go down first
        heads.forEach((other) => other.removeAttribute("aria-sort"))
        head.setAttribute("aria-sort", isUp ? "ascending" : "descending")
        const text = (row) => row.cells[column].textContent.trim()
        const isName = [...table.tBodies[0].rows].every((row) => Number.isNaN(number(text(row))) || /^[A-Za-z]/.test(text(row)))
        const order = isName ? (a, b) => text(a).localeCompare(text(b)) : (a, b) => compare(text(a), text(b))
        const rows = [...table.tBodies[0].rows].sort((a, b) => (isUp ? order(a, b) : order(b, a)))
        const isEmpty = (row) => text(row) === "—"
        table.tBodies[0].append(...rows.filter((row) => !isEmpty(row)), ...rows.filter(isEmpty))
      })
    })
  }
})
