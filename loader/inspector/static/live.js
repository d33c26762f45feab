// The stream of operations. It is closed while the page is hidden: a browser opens only six connections to a server.

import { byId } from "./dom.js";

const PATIENCE = 2500; // milliseconds without a connection until that is worth saying

/** Calls `receive` with each event's data; what came last is where the next connection goes on. */
export function listen(receive) {
  let source = null;
  let last = "";
  let late = null;
  let again = null;

  function show(state, text) {
    clearTimeout(late);
    late = null;
    byId("live").dataset.state = state;
    byId("live-text").textContent = text;
  }

  function open() {
    clearTimeout(again);
    source = new EventSource(`api/events?last=${encodeURIComponent(last)}`);
    source.addEventListener("open", () => show("live", "Live"));
    source.addEventListener("message", (event) => {
      last = event.lastEventId;
      receive(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) {
        // The server has refused, or is no inspector for the moment.
        show("lost", "No answer");
        again = setTimeout(open, PATIENCE);
      } else if (late === null) {
        late = setTimeout(() => show("lost", "Reconnecting"), PATIENCE);
      }
    });
  }

  function close() {
    clearTimeout(again);
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (source === null) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (event.persisted && source === null) open();
  });
  if (!document.hidden) open();
}
