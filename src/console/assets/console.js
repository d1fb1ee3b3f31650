"use strict";
// What the pages can do beyond links and forms: rows that come while one looks, keys, a palette, copying, local times.
// It writes no markup: the console's policy leaves no way to.
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const kept = {
    get: (name) => { try { return localStorage.getItem(`hookgate.${name}`); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(`hookgate.${name}`, value); } catch { /* a private window */ } },
  };
  const make = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const announcer = make("p", { className: "sr" });
  announcer.setAttribute("role", "status");
  document.body.append(announcer);
  const say = (text) => { announcer.textContent = text; };

  // Times: UTC as they came, or local.
  const pad = (n) => String(n).padStart(2, "0");
  const relative = (ms) => {
    const s = Math.floor(Math.abs(ms) / 1000);
    const about = s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
    return ms > 0 ? `in ${about}` : s < 1 ? "just now" : `${about} ago`;
  };
  const timesButton = $('[data-js="times"]');
  let local = kept.get("times") === "local";
  const showTime = (time) => {
    const at = $(".at", time);
    const date = new Date(time.dateTime);
    if (!at || isNaN(date)) return;
    if (!at.dataset.utc) at.dataset.utc = at.textContent;
    const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
    const millis = `.${String(date.getMilliseconds()).padStart(3, "0")}`;
    const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
    at.textContent = !local ? at.dataset.utc : time.classList.contains("clock") ? `${clock}${millis} local` : `${day} ${clock} local`;
    const ago = $(".ago", time);
    if (ago) ago.textContent = relative(date - Date.now());
  };
  const showTimes = (within = document) => $$("time[datetime]", within).forEach(showTime);
  if (timesButton) {
    const label = () => { timesButton.textContent = local ? "UTC" : "local time"; };
    timesButton.hidden = false;
    timesButton.addEventListener("click", () => {
      local = !local;
      kept.set("times", local ? "local" : "utc");
      label();
      showTimes();
      say(local ? "times are local" : "times are UTC");
    });
    label();
    showTimes();
    setInterval(showTimes, 10000);
  }

  // Copying.
  const copy = async (text, what) => {
    try { await navigator.clipboard.writeText(text); say(`${what} copied`); return true; } catch { say("this browser does not let pages copy"); return false; }
  };
  if (navigator.clipboard) {
    $$("[data-copy]").forEach((from) => {
      const button = make("button", { type: "button", className: "quiet copier", textContent: "copy" });
      const text = from.textContent;
      button.setAttribute("aria-label", `copy ${text.slice(0, 60)}`);
      button.addEventListener("click", async () => {
        if (await copy(text, "text")) { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); }
      });
      from.after(button);
    });
  }

  // A page that is asked for anew, as a document: its scripts do not run, and only parts of it are taken over.
  const load = () => new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = 10000;
    request.onload = () => {
      const gone = request.responseURL && new URL(request.responseURL).pathname !== location.pathname;
      if (gone) { location.reload(); } else if (request.status === 200 && request.response) { resolve(request.response); } else { reject(new Error(String(request.status))); }
    };
    request.onerror = request.ontimeout = () => reject(new Error("no answer"));
    request.send();
  });
  const rowsOf = (within) => $$("[data-rows] > tbody > tr", within);
  const ROWS_MAX = 500;

  const liveBar = $('[data-js="live"]');
  const liveBody = $("[data-rows] > tbody");
  const isLive = document.body.hasAttribute("data-live");
  if (isLive && liveBar) {
    let running = kept.get("live") === "on";
    let waiting = [];
    const toggle = make("button", { type: "button" });
    const fresh = make("button", { type: "button", className: "primary", hidden: true });
    const told = make("span", { className: "dim" });
    liveBar.append(toggle, fresh, told);
    liveBar.hidden = false;
    const known = new Set(rowsOf(document).map((row) => row.dataset.id));
    // Looked at: a row is pointed at or has the focus, something is marked, or the page is scrolled.
    const lookedAt = () => liveBody && (liveBody.matches(":hover") || liveBody.contains(document.activeElement) || $("input:checked", liveBody) || $("tr.at", liveBody) || window.scrollY > 300);
    const label = () => {
      toggle.textContent = running ? "Stop following" : "Follow";
      toggle.setAttribute("aria-pressed", String(running));
      fresh.hidden = waiting.length === 0;
      fresh.textContent = `${waiting.length}${waiting.length >= 50 ? "+" : ""} new`;
      told.textContent = running ? (lookedAt() ? "holds still while you look" : "rows come by themselves") : "";
    };
    const insert = () => {
      if (!liveBody) { location.reload(); return; }
      const at = rowsOf(document).length;
      const rows = waiting.map((row) => document.adoptNode(row));
      rows.forEach((row) => { row.classList.add("fresh"); known.add(row.dataset.id); showTimes(row); });
      liveBody.prepend(...rows);
      rowsOf(document).slice(ROWS_MAX).forEach((row) => { known.delete(row.dataset.id); row.remove(); });
      setTimeout(() => rows.forEach((row) => row.classList.remove("fresh")), 1500);
      if (at === 0) location.reload();
      say(`${rows.length} new`);
      waiting = [];
      label();
    };
    const update = (page) => {
      const rows = rowsOf(page);
      const byId = new Map(rows.map((row) => [row.dataset.id, row]));
      // Those that are shown already may stand elsewhere by now.
      rowsOf(document).forEach((row) => {
        const other = byId.get(row.dataset.id);
        if (!other) return;
        showTimes(other);
        [...row.children].forEach((cell, i) => {
          if (other.children[i] && cell.textContent !== other.children[i].textContent && !cell.contains(document.activeElement)) {
            cell.replaceChildren(...[...other.children[i].childNodes].map((node) => document.importNode(node, true)));
          }
        });
      });
      waiting = rows.filter((row) => !known.has(row.dataset.id));
    };
    const look = async () => {
      if (document.hidden) return;
      try {
        update(await load());
        if (running && waiting.length && !lookedAt()) insert(); else label();
      } catch { told.textContent = "the gateway does not answer"; }
    };
    toggle.addEventListener("click", () => { running = !running; kept.set("live", running ? "on" : "off"); label(); look(); });
    fresh.addEventListener("click", insert);
    label();
    const again = () => setTimeout(async () => { await look(); again(); }, running ? 2000 : 8000);
    again();
  } else if (isLive) {
    // One thing that goes on: its state is shown anew until it is over.
    const holder = () => $$("[data-fresh]");
    const before = holder().map((part) => part.textContent);
    const again = () => setTimeout(async () => {
      if (document.hidden) { again(); return; }
      try {
        const page = await load();
        const now = $$("[data-fresh]", page);
        const over = !page.body.hasAttribute("data-live");
        const open = $("details[open] input:focus, details[open] textarea:focus, input:focus");
        if (over || now.length !== before.length) { if (!open) { location.reload(); return; } }
        holder().forEach((part, i) => { if (now[i]) { part.replaceChildren(...[...now[i].childNodes].map((node) => document.importNode(node, true))); showTimes(part); } });
      } catch { /* asked again */ }
      again();
    }, 2000);
    again();
  }

  // Keys, and a palette. Both can be switched off, for whoever speaks to the machine or has keys of their own.
  let keys = kept.get("keys") !== "off";
  const KEYS = [["/", "search"], ["j k", "next, previous row"], ["Enter", "open the row"], ["x", "mark the row"], ["r", "redrive: this one, or those marked"], ["c", "copy the id"], ["n", "show new rows"], ["g o", "overview"], ["g e", "events"], ["g d", "deliveries"], ["g l", "dead letters"], ["g p", "operations"], ["g n", "endpoints"], ["g s", "sources"], ["g r", "rejections"], ["g u", "plugins"], ["g y", "system"], ["Ctrl K", "go anywhere"], ["?", "this list"]];
  const help = make("dialog");
  help.setAttribute("aria-label", "Keys");
  const list = make("dl", { className: "facts" });
  KEYS.forEach(([key, what]) => list.append(make("dt", {}, ...key.split(" ").flatMap((part, i) => i ? [" ", make("kbd", { textContent: part })] : [make("kbd", { textContent: part })])), make("dd", { textContent: what })));
  const box = make("input", { type: "checkbox", checked: keys });
  box.addEventListener("change", () => { keys = box.checked; kept.set("keys", keys ? "on" : "off"); });
  const close = make("button", { type: "button", textContent: "Close" });
  close.addEventListener("click", () => help.close());
  help.append(make("h2", { textContent: "Keys" }), make("label", { className: "check" }, box, " single keys do something"), list, close);
  const palette = make("dialog");
  palette.setAttribute("aria-label", "Go to");
  const field = make("input", { type: "text", autocomplete: "off", spellcheck: false, placeholder: "a page, or an id: dlv_…, evt_…, op_…" });
  field.setAttribute("aria-label", "Go to");
  const results = make("ul", { className: "results" });
  palette.append(field, results);
  document.body.append(help, palette);
  const places = $$("#palette-data a").map((a) => [a.textContent, a.getAttribute("href")]);
  const tenant = (location.pathname.match(/^\/console\/t\/[^/]+/) || [""])[0];
  let chosen = 0;
  const found = () => {
    const text = field.value.trim();
    const id = text.match(/^(dlv|evt|op)_[0-9a-f]{32}$/);
    const kinds = { dlv: "deliveries", evt: "events", op: "operations" };
    const all = places.filter(([name]) => name.includes(text.toLowerCase()));
    if (id && tenant) all.unshift([text, `${tenant}/${kinds[id[1]]}/${text}`]);
    else if (text && tenant) all.push([`search deliveries for “${text}”`, `${tenant}/deliveries?q=${encodeURIComponent(text)}`]);
    return all.slice(0, 12);
  };
  const showFound = () => {
    const all = found();
    chosen = Math.min(chosen, Math.max(all.length - 1, 0));
    results.replaceChildren(...all.map(([name, href], i) => make("li", { className: i === chosen ? "at" : "" }, make("a", { href, textContent: name }))));
  };
  field.addEventListener("input", () => { chosen = 0; showFound(); });
  field.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); chosen = Math.max(0, chosen + step); showFound(); }
    if (event.key === "Enter") { const to = found()[chosen]; if (to) location.assign(to[1]); }
  });
  const openPalette = () => { field.value = ""; chosen = 0; showFound(); palette.showModal(); };
  const helpButton = $('[data-js="help"]');
  if (helpButton) { helpButton.hidden = false; helpButton.addEventListener("click", () => help.showModal()); }

  let current = -1;
  const move = (step) => {
    const rows = rowsOf(document);
    if (!rows.length) return;
    rows.forEach((row) => row.classList.remove("at"));
    current = Math.max(0, Math.min(rows.length - 1, current + step));
    rows[current].classList.add("at");
    rows[current].scrollIntoView({ block: "nearest" });
    const link = $("a.open", rows[current]);
    if (link) link.focus({ preventScroll: true });
  };
  const row = () => $("tr.at") || (document.activeElement && document.activeElement.closest("[data-rows] tr"));
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k" && places.length) { event.preventDefault(); openPalette(); return; }
    if (!keys || event.ctrlKey || event.metaKey || event.altKey || help.open || palette.open) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
    const now = Date.now();
    if (now - going < 1200) {
      going = 0;
      const to = $(`[data-go="${CSS.escape(event.key)}"]`);
      if (to) { event.preventDefault(); location.assign(to.href); }
      return;
    }
    const at = row();
    const act = {
      "/": () => { const search = $('[data-js="search"]'); if (search) search.focus(); else if (places.length) openPalette(); },
      "j": () => move(1),
      "k": () => move(-1),
      "x": () => { const mark = at && $(".mark input", at); if (mark) mark.checked = !mark.checked; },
      "n": () => { const fresh = liveBar && $("button.primary:not([hidden])", liveBar); if (fresh) fresh.click(); },
      "c": () => { const id = (at && at.dataset.id) || ($(".id-whole, .id-line [data-copy]") || {}).textContent; if (id) copy(id, id); },
      "r": () => {
        const one = $('[data-js="redrive"]');
        const marked = $$(".mark input:checked");
        if (one) { one.focus(); say("Enter redrives it"); } else if (marked.length) { const bulk = $("#bulk"); if (bulk) bulk.requestSubmit($("button", bulk)); } else if (at) { const redrive = $(".do a.button", at); if (redrive) redrive.click(); }
      },
      "g": () => { going = now; },
      "?": () => help.showModal(),
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  // Marked is something, or the whole filter is meant by mistake.
  const bulk = $("#bulk");
  if (bulk) bulk.addEventListener("submit", (event) => { if (!$(".mark input:checked")) { event.preventDefault(); say("mark some rows first"); const first = $(".mark input"); if (first) first.focus(); } });
})();
