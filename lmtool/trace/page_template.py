"""The page of `page.py`: its frame, its style, and what its keys do."""

from __future__ import annotations

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
<h1>{title}</h1>
<p>{summary}</p>
<p class="legend">{heat} {legend}</p>
<p class="keys">Point at a token for its alternatives. Keys: ← → token · ↑ ↓ stream · n N next less likely than 1 in 10 · Home End</p>
<main>
{streams}
</main>
<pre id="about" aria-live="polite"></pre>
<script>
{script}</script>
</html>
"""  # noqa: E501 - a document
"""With names in braces to be filled in."""

STYLE = """:root { color-scheme: light dark }
body { font: 16px/1.6 ui-monospace, monospace; margin: 2em auto 12em; max-width: 110em; padding: 0 1.5em }
h1 { font-size: 1.3em } h2 { font-size: 1em } footer, .keys, h2 { opacity: .7 }
main { display: grid; gap: 2em; grid-template-columns: repeat(auto-fit, minmax(min(28em, 100%), 1fr)) }
section { min-width: 0 }
blockquote { border-left: 3px solid #888; margin: 0; max-height: 12em; overflow: auto; padding-left: 1em; white-space: pre-wrap }
.text { overflow-wrap: anywhere; white-space: pre-wrap }
i { cursor: default; font-style: normal }
i.thought { color: light-dark(#875f87, #af87af); font-style: italic }
i.on { outline: 2px solid currentColor; outline-offset: 1px }
.differs { border-bottom: 3px solid #d03080 }
.legend span { margin-right: .3em; padding: 0 .5em }
#about { background: Canvas; border-top: 1px solid #888; bottom: 0; left: 0; margin: 0; max-height: 11em; overflow: auto; padding: .6em 1.5em; position: fixed; right: 0 }
#about:empty { display: none }
"""  # noqa: E501 - a style sheet
"""The style, without the colours of heat."""

SCRIPT = """const streams = [...document.querySelectorAll("section")].map(s => [...s.querySelectorAll("i")]);
const about = document.getElementById("about");
let column = 0, place = -1;
function show(c, p) {
  const token = streams[c] && streams[c][p];
  if (!token) return;
  document.querySelector("i.on")?.classList.remove("on");
  [column, place] = [c, p];
  token.classList.add("on");
  token.scrollIntoView({block: "nearest"});
  about.textContent = token.title;
}
function rare(step) {
  for (let p = place + step; p >= 0 && p < streams[column].length; p += step)
    if ("rare" in streams[column][p].dataset) return show(column, p);
}
function across(step) {
  for (let c = column + step; c >= 0 && c < streams.length; c += step)
    if (streams[c].length) return show(c, Math.max(0, Math.min(place, streams[c].length - 1)));
}
const keys = {
  ArrowRight: () => show(column, place + 1), ArrowLeft: () => show(column, place - 1),
  ArrowDown: () => across(1), ArrowUp: () => across(-1),
  Home: () => show(column, 0), End: () => show(column, streams[column].length - 1),
  n: () => rare(1), N: () => rare(-1),
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || !streams.length) return;
  event.preventDefault();
  keys[event.key]();
});
streams.forEach((tokens, c) => tokens.forEach((token, p) => token.addEventListener("mouseenter", () => show(c, p))));
"""
"""What makes the page answer keys and the pointer; without it titles of tokens show the same."""
