// Moves all panels of the lens with the slider: asks the server for the parts of a moment and puts them in place.
import { news } from "./news.js";

const STEP_MS = 500;
const FRAME_MS = 125;
const ADDRESS_MS = 300;

const root = document.getElementById("lens");
const slider = document.getElementById("t");
const clock = document.getElementById("clock");
const trouble = document.getElementById("trouble");
const button = (name) => root.querySelector(`[data-do="${name}"]`);

let marks = JSON.parse(root.dataset.marks);
let t = Number(slider.value);
let following = root.dataset.live === "yes" && !new URLSearchParams(location.search).has("t");
let player = 0;
let asking = false;
let wanted = null;
let resting = 0;

// One request at a time; the newest wish replaces an older one that has not been sent.
async function show(at) {
  wanted = at;
  if (asking) return;
  asking = true;
  try {
    while (wanted !== null) {
      const query = wanted === "now" ? "" : `?t=${wanted}`;
      wanted = null;
      const answer = await fetch(`${root.dataset.path}/parts${query}`, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error(`the console answers ${answer.status}`);
      draw(await answer.json());
    }
  } catch (error) {
    tell(`The picture is old: ${error.message}`);
  } finally {
    asking = false;
  }
}

function draw(moment) {
  for (const [name, html] of Object.entries(moment.parts)) {
    const place = root.querySelector(`[data-part="${name}"]`);
    // A picture that has not changed stays, so that a focused link keeps the focus.
    if (place && place.dataset.shown !== html) {
      const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      place.innerHTML = html;
      place.dataset.shown = html;
      if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    }
  }
  marks = moment.marks;
  slider.min = moment.begin;
  slider.max = moment.end;
  if (following) t = moment.t;
  slider.value = t;
  clock.textContent = moment.clock;
  slider.setAttribute("aria-valuetext", moment.clock);
  document.title = document.title.replace(/ at [\d:.]+/, ` at ${moment.clock}`);
  tell(moment.trouble);
  markStep();
}

function tell(text) {
  trouble.hidden = !text;
  if (trouble.textContent !== text) trouble.textContent = text;
}

function markStep() {
  const steps = [...root.querySelectorAll("[data-step]")];
  const current = steps.filter((step) => Number(step.dataset.step) <= t).at(-1);
  for (const step of steps) {
    if (step === current) step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  }
}

function go(at) {
  follow(false);
  t = Math.min(Math.max(Math.round(at), Number(slider.min)), Number(slider.max));
  slider.value = t;
  keepAddress();
  show(t);
}

// Browsers limit how often a page may change its address, so the address follows when the time rests.
function keepAddress() {
  clearTimeout(resting);
  resting = setTimeout(() => history.replaceState(null, "", following ? location.pathname : `?t=${t}`), ADDRESS_MS);
}

function follow(now) {
  following = now;
  button("follow")?.setAttribute("aria-pressed", String(now));
  if (now) {
    keepAddress();
    show("now");
  }
}

function play(on) {
  clearInterval(player);
  player = 0;
  if (on) {
    if (t >= Number(slider.max)) go(Number(slider.min));
    player = setInterval(() => (t >= Number(slider.max) ? play(false) : go(t + FRAME_MS)), FRAME_MS);
  }
  button("play").setAttribute("aria-pressed", String(on));
  button("play").textContent = on ? "■ stop" : "▶ play";
}

const actions = {
  back: () => go(t - STEP_MS),
  forward: () => go(t + STEP_MS),
  previous: () => go(marks.filter((one) => one < t).at(-1) ?? slider.min),
  next: () => go(marks.find((one) => one > t) ?? slider.max),
  play: () => play(!player),
  follow: () => follow(true),
};

const keys = {
  ArrowLeft: (event) => go(t - (event.shiftKey ? 5000 : STEP_MS)),
  ArrowRight: (event) => go(t + (event.shiftKey ? 5000 : STEP_MS)),
  "[": actions.previous,
  "]": actions.next,
  " ": actions.play,
  Home: () => go(slider.min),
  End: () => go(slider.max),
};

root.addEventListener("click", (event) => {
  const action = event.target.closest("[data-do]");
  if (action) return actions[action.dataset.do]();
  const link = event.target.closest("a[href*='?t=']");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    go(Number(new URLSearchParams(link.getAttribute("href").split("?")[1]).get("t")));
  }
});
slider.addEventListener("input", () => go(slider.value));
slider.form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  // A focused button or summary keeps its own space key.
  if (event.key === " " && event.target.closest("button, summary, a")) return;
  if (event.target.closest(".scroll")) return;
  const act = keys[event.key];
  if (act) {
    event.preventDefault();
    act(event);
  }
});

markStep();
if (root.dataset.live === "yes") news(() => following && document.visibilityState === "visible" && show("now"), tell);
document.addEventListener("visibilitychange", () => following && document.visibilityState === "visible" && show("now"));
