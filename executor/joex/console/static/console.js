// Live updates. Each page works without this file: it loads the page again, and changes what differs.
"use strict";

(() => {
  const LATE = 5000;  // ms after which an answer is overdue
  const banner = document.getElementById("reconnecting");
  const main = () => document.getElementById("main");
  let tag = null;     // of the page as it is shown
  let timer = null;
  let asking = false;
  let heard = new Date();   // when the console answered last

  // What the user has opened or is typing stays.
  const callbacks = {
    beforeNodeMorphed: (old) => !(old instanceof Element && old.hasAttribute("data-keep")),
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
  };

  // What is shown is old: since when.
  function stale() {
    const since = banner.querySelector("time");
    since.dateTime = heard.toISOString();
    since.textContent = `${since.dateTime.slice(11, 19)}Z`;
    banner.hidden = false;
  }

  async function look() {
    const every = Number(main().dataset.every || 0);
    clearTimeout(timer);
    if (!every || document.hidden || asking) return;
    asking = true;
    const overdue = setTimeout(stale, LATE);   // a link that is silent ends with no error for a long time
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, redirect: "manual", signal: AbortSignal.timeout(20000) });
      if (answer.type === "opaqueredirect") location.reload();   // signed out meanwhile
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        Idiomorph.morph(main(), page.getElementById("main"), { ignoreActiveValue: true, callbacks });
        document.title = page.title;
        tag = answer.headers.get("ETag");
      }
      if (answer.ok || answer.status === 304) {
        heard = new Date();
        banner.hidden = true;
      } else stale();
    } catch {
      stale();
    }
    clearTimeout(overdue);
    asking = false;
    const next = Number(main().dataset.every || 0);
    if (next) timer = setTimeout(look, 1000 * next * (0.9 + 0.2 * Math.random()));
  }

  // What a timer means, while it is typed: as it was typed last, whichever answer comes last.
  function explain(form) {
    let waiting = null, latest = 0;
    form.addEventListener("input", () => {
      const own = ++latest;
      clearTimeout(waiting);
      waiting = setTimeout(async () => {
        const query = new URLSearchParams(new FormData(form));
        try {
          const answer = await fetch(`${form.dataset.explain}?${query}`, { redirect: "manual" });   // not to the sign-in
          const meaning = await answer.text();
          if (answer.ok && own === latest) document.getElementById("explained").innerHTML = meaning;
        } catch {}   // the next input asks again
      }, 250);
    });
  }

  document.querySelectorAll("form[data-explain]").forEach(explain);
  document.addEventListener("visibilitychange", look);
  if (main().dataset.every) timer = setTimeout(look, 1000 * Number(main().dataset.every));
})();
