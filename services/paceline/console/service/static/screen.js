// Keeps a screen current: when the server has news, at most once in REST_MS, asks for the page again and puts its moving
// parts in place. Forms and open details stay. A page that follows a topic gets only the new records.
import { news } from "./news.js";

const REST_MS = 2000;
const MOST_ROWS = 500;

const root = document.getElementById("screen");
const trouble = document.getElementById("trouble");
let asking = false;
let asked = 0;
let later = 0;

function tell(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text;
}

async function refresh() {
  clearTimeout(later);
  if (document.visibilityState !== "visible") return;
  const rest = asked + (root.dataset.tail ? REST_MS / 4 : REST_MS) - Date.now();
  if (asking || rest > 0) {
    later = setTimeout(refresh, Math.max(rest, 100));
    return;
  }
  asking = true;
  asked = Date.now();
  try {
    const follows = root.dataset.tail;
    const answer = await fetch(follows || location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(`the console answers ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (follows) append(page);
    else replace(page);
    tell(page.getElementById("trouble").textContent);
  } catch (error) {
    tell(`The picture is old: ${error.message}`);
  } finally {
    asking = false;
  }
}

// A part that has not changed stays, so that a focused link keeps the focus.
function replace(page) {
  for (const selector of ["#moving", ...[...root.querySelectorAll("[data-panel]")].map((one) => `[data-panel="${one.dataset.panel}"]`)]) {
    const before = root.querySelector(selector);
    const after = page.querySelector(selector);
    if (!before || !after || before.innerHTML === after.innerHTML) continue;
    const focused = before.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    before.replaceChildren(...after.childNodes);
    if (focused) before.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

// The newest record stands first, as on the page.
function append(page) {
  const body = root.querySelector('[data-panel="records"] tbody');
  root.dataset.tail = page.getElementById("screen").dataset.tail;
  const rows = [...page.querySelectorAll('[data-panel="records"] tbody tr')].filter((row) => row.querySelector("th"));
  if (!rows.length) return;
  if (!body.querySelector("th")) body.replaceChildren();
  body.prepend(...rows);
  while (body.rows.length > MOST_ROWS) body.lastElementChild.remove();
}

if (root.dataset.refresh === "yes") {
  news(refresh, tell);
  document.addEventListener("visibilitychange", refresh);
}
