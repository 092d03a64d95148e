"use strict";
// Lets readers sort and filter tables, see exact figures, and hide series of figures. The page is
// complete without this script. Texts of the page come from data of others: they are only ever
// copied as text (textContent), never parsed as HTML.
(() => {
  const MAX_CHOICES = 60; // of a column, in a menu

  /** Creates an element with a text. */
  function createElement(name, text = "") {
    const element = document.createElement(name);
    element.textContent = text;
    return element;
  }

  // --- tables: sorting ---------------------------------------------------------------------------

  /** The number that a cell is sorted by; NaN for text. */
  function readNumber(cell) {
    return cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
  }

  /** Compares two rows by a column; rows without a number follow all others in either order. */
  function compareRows(first, second, index, isNumeric, direction) {
    const [firstCell, secondCell] = [first.cells[index], second.cells[index]];
    if (!isNumeric) {
      const texts = [firstCell.textContent, secondCell.textContent];
      return direction * texts[0].localeCompare(texts[1], "en", { numeric: true });
    }

    const [firstNumber, secondNumber] = [readNumber(firstCell), readNumber(secondCell)];
    if (isNaN(firstNumber) || isNaN(secondNumber)) {
      return isNaN(firstNumber) - isNaN(secondNumber);
    }
    return direction * (firstNumber === secondNumber ? 0 : firstNumber < secondNumber ? -1 : 1);
  }

  /** Writes the names of groups into all of their rows, or only into the first of each. */
  function nameGroups(rows, isEveryRow) {
    let name = "";
    for (const row of rows) {
      const cell = row.cells[0];
      if (cell.dataset.group === undefined) {
        name = cell.textContent || name;
        cell.dataset.group = name;
        cell.dataset.isFirst = cell.textContent ? "1" : "";
      }
      cell.textContent = isEveryRow || cell.dataset.isFirst ? cell.dataset.group : "";
    }
  }

  /** Turns each head of a table into a button: rising, falling, and the order of the page. */
  function makeSortable(table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      const isNumeric = original.some((row) => row.cells[index].dataset.value !== undefined);
      const button = createElement("button", head.textContent);
      button.type = "button";
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const order = head.getAttribute("aria-sort");
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        const isSorted = order !== "descending";
        if (table.hasAttribute("data-grouped")) {
          nameGroups(original, isSorted);
        }
        let rows = original;
        if (isSorted) {
          const direction = order === "ascending" ? -1 : 1;
          head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
          rows = [...original].sort((a, b) => compareRows(a, b, index, isNumeric, direction));
        }
        body.replaceChildren(...rows);
      });
    });
  }

  // --- tables: filters ---------------------------------------------------------------------------

  /** Creates a menu of the distinct texts of a column; null if there are too few or too many. */
  function createMenu(name, rows, index) {
    const texts = [...new Set(rows.map((row) => row.cells[index].textContent))];
    if (texts.length < 2 || texts.length > MAX_CHOICES) {
      return null;
    }
    const menu = createElement("select");
    menu.setAttribute("aria-label", name);
    const everything = createElement("option", "all");
    everything.value = "";
    menu.append(everything);
    texts.forEach((text, number) => {
      const option = createElement("option", text);
      option.value = String(number);
      menu.append(option);
    });
    return { menu, index, chosen: () => (menu.value === "" ? null : texts[Number(menu.value)]) };
  }

  /** Adds a field for words, menus of text columns but the first, and a count above a table. */
  function makeFilterable(table) {
    const rows = [...table.tBodies[0].rows];
    const contents = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const bar = createElement("div");
    bar.className = "filters";
    const words = createElement("input");
    words.type = "search";
    const field = createElement("label", "rows with the words");
    field.append(words);
    bar.append(field);

    const menus = [];
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const isText = rows.every((row) => row.cells[index].dataset.value === undefined);
      const menu = isText && index > 0 ? createMenu(head.textContent, rows, index) : null;
      if (menu) {
        const label = createElement("label", head.textContent);
        label.append(menu.menu);
        bar.append(label);
        menus.push(menu);
      }
    });

    const count = createElement("output");
    bar.append(count);
    const showRows = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const isShown =
          wanted.every((word) => contents.get(row).includes(word)) &&
          menus.every(
            ({ index, chosen }) =>
              chosen() === null || chosen() === row.cells[index].textContent,
          );
        row.classList.toggle("off", !isShown);
        shown += isShown;
      }
      count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows`;
    };
    bar.addEventListener("input", showRows);
    showRows();
    table.closest(".box").before(bar);
  }

  // --- exact figures -----------------------------------------------------------------------------

  /** Shows titles at once and on touch screens, where browsers show them late or not at all. */
  function showExactFigures() {
    for (const cell of document.querySelectorAll("td[title]")) {
      cell.dataset.exact = cell.title;
      cell.removeAttribute("title");
    }
    for (const title of document.querySelectorAll("svg use > title")) {
      const mark = title.parentNode;
      mark.dataset.exact = title.textContent;
      title.remove();
    }

    const tip = createElement("div");
    tip.className = "exact";
    tip.setAttribute("role", "tooltip");
    tip.hidden = true;
    document.body.append(tip);
    const showAt = (event) => {
      const target = event.target.closest?.("[data-exact]");
      tip.hidden = !target;
      if (!target) {
        return;
      }
      tip.textContent = target.dataset.exact;
      const box = target.getBoundingClientRect();
      const left = Math.min(box.left, innerWidth - tip.offsetWidth - 4);
      const above = box.top - tip.offsetHeight - 4;
      tip.style.left = `${Math.max(left, 4)}px`;
      tip.style.top = `${above > 4 ? above : box.bottom + 4}px`;
    };
    document.addEventListener("pointerover", showAt);
    document.addEventListener("pointerdown", showAt);
    document.addEventListener("keydown", (event) => {
      tip.hidden = tip.hidden || event.key === "Escape";
    });
    addEventListener("scroll", () => (tip.hidden = true), { capture: true, passive: true });
  }

  // --- figures: series ---------------------------------------------------------------------------

  /** Turns the entries of a figure's legend into buttons that hide and show their series. */
  function makeSeriesToggles(svg) {
    const entries = new Map();
    for (const part of svg.querySelectorAll("[data-legend]")) {
      const key = part.dataset.legend;
      entries.set(key, [...(entries.get(key) ?? []), part]);
    }
    if (entries.size) {
      svg.setAttribute("role", "group"); // the children of an image are not accessible
    }

    for (const [key, parts] of entries) {
      const series = [...svg.querySelectorAll("[data-series]")].filter(
        (artist) => artist.dataset.series === key,
      );
      const button = parts.find((part) => part.querySelector("text")) ?? parts[0];
      const toggle = () => {
        const isShown = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!isShown));
        [...parts, ...series].forEach((part) => part.classList.toggle("off", isShown));
      };
      button.setAttribute("role", "button");
      button.setAttribute("tabindex", "0");
      button.setAttribute("aria-pressed", "true");
      button.setAttribute("aria-label", `show ${button.textContent.trim()}`);
      button.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          toggle();
        }
      });
      parts.forEach((part) => part.addEventListener("click", toggle));
    }
  }

  document.querySelectorAll("table").forEach((table) => {
    if (table.tHead && table.tBodies.length) {
      if (table.hasAttribute("data-filterable")) {
        makeFilterable(table);
      }
      makeSortable(table);
    }
  });
  document.querySelectorAll("svg").forEach(makeSeriesToggles);
  showExactFigures();
})();
