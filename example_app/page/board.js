// The departures board: a subscription, whose clock goes on where it was when the page is loaded again.

import { byId, h, remember, remembered, showState } from "./dom.js";
import { atMinute, onDay } from "./format.js";

const BEGIN = "2013-01-15T11:30:00Z"; // half past six in New York
const END = "2013-02-01T05:00:00Z"; // after which there are no more flights
const GONE_FOR = 4000; // milliseconds that a flight which has left is still shown

const SUBSCRIPTION = `subscription Board($origin: String!, $speed: Float!, $since: DateTime!) {
  departures(origin: $origin, speed: $speed, since: $since) {
    time
    status
    flight {
      id number carrierCode destinationCode scheduledDeparture departure departureDelay delayedBy cancelled
      airline { name }
      destination { name }
    }
  }
}`;

export class Board {
  constructor(socket) {
    this.socket = socket;
    this.lines = new Map(); // by the flight's id: { flight, row, gone }
    this.body = byId("lines").tBodies[0];
    this.controls = byId("board-controls");
    this.empty = byId("board-empty");
    const { origin, speed, since } = remembered("board") ?? {};
    if (origin) this.controls.origin.value = origin;
    if (speed) this.controls.speed.value = speed;
    this.since = new Date(since < END ? since : BEGIN);
    this.running = false;
    this.controls.addEventListener("change", () => this.follow());
    this.controls.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("pagehide", () => this.remember());
    setInterval(() => this.tick(), 200);
    this.follow();
    this.tick();
  }

  /** What the board's clock shows; it runs from the first event of a connection to its loss, and never back. */
  now() {
    if (!this.running) return this.since;
    return new Date(this.since.getTime() + (performance.now() - this.seen) * this.speed);
  }

  follow() {
    this.stop?.();
    this.stand();
    this.clear();
    this.stop = this.socket.subscribe(SUBSCRIPTION, () => this.variables(), {
      next: (data) => this.receive(data.departures),
      lost: () => this.stand(),
      error: (message) => this.say(message),
      complete: () => this.goOn(),
    });
  }

  variables() {
    this.stand();
    this.clear(); // a new connection tells everything that is on the board
    this.speed = Number(this.controls.speed.value);
    return { origin: this.controls.origin.value, speed: this.speed, since: this.since.toISOString() };
  }

  stand() {
    this.since = this.now();
    this.running = false;
  }

  /** After the end of the month begins it again; a server that stops ends the board too, and the next one goes on. */
  goOn() {
    this.stand();
    if (this.since >= new Date(END)) this.since = new Date(BEGIN);
  }

  clear() {
    this.lines.clear();
    this.body.replaceChildren();
    this.say("Waiting for the first departures…");
  }

  say(text) {
    this.empty.hidden = false;
    this.empty.textContent = text;
  }

  receive({ time, status, flight }) {
    this.empty.hidden = true;
    if (!this.running || new Date(time) > this.now()) {
      this.since = new Date(time);
      this.seen = performance.now();
      this.running = true;
      this.remember();
    }
    const line = this.lines.get(flight.id) ?? this.place(flight);
    line.flight = flight;
    line.gone = status === "DEPARTED" || status === "CANCELLED";
    line.row.dataset.status = status.toLowerCase();
    line.row.cells[3].textContent = inWords(status, flight);
    if (line.gone) setTimeout(() => this.remove(line), GONE_FOR);
  }

  /** A new line, among the others by the time when it should leave. */
  place(flight) {
    const row = h("tr", {},
      h("td", {}, atMinute(new Date(flight.scheduledDeparture))),
      h("td", {}, h("span", {}, `${flight.carrierCode} ${flight.number}`), h("small", {}, flight.airline?.name ?? "")),
      h("td", {}, h("span", {}, flight.destinationCode), h("small", {}, flight.destination?.name ?? "")),
      h("td"));
    const line = { flight, row, gone: false };
    const later = [...this.lines.values()].filter((other) => other.flight.scheduledDeparture > flight.scheduledDeparture);
    later.sort((one, other) => (one.flight.scheduledDeparture < other.flight.scheduledDeparture ? -1 : 1));
    this.body.insertBefore(row, later[0]?.row ?? null);
    this.lines.set(flight.id, line);
    return line;
  }

  remove(line) {
    line.row.remove();
    if (this.lines.get(line.flight.id) === line) this.lines.delete(line.flight.id);
  }

  /** Flights that have not left, and will. */
  waiting() {
    const lines = [...this.lines.values()].filter(({ flight, gone }) => !gone && !flight.cancelled);
    return lines.map(({ flight }) => flight).sort((one, other) => (one.scheduledDeparture < other.scheduledDeparture ? -1 : 1));
  }

  tick() {
    const now = this.now();
    const text = `${onDay(now)}, ${atMinute(now)}`;
    if (byId("clock").textContent !== text) byId("clock").textContent = text;
  }

  remember() {
    const { origin, speed } = this.controls;
    remember("board", { origin: origin.value, speed: speed.value, since: this.now().toISOString() });
  }
}

function inWords(status, flight) {
  const late = flight.departureDelay > 0 ? `, ${flight.departureDelay} min late` : "";
  if (status === "DEPARTED") return `Departed ${atMinute(new Date(flight.departure))}${late}`;
  if (status === "CANCELLED") return "Cancelled";
  if (status === "SCHEDULED") return "On time";
  return flight.delayedBy > 0 ? `Delayed ${flight.delayedBy} min` : "Delayed";
}

/** Shows how the connection is. */
export function showConnection(state, seconds) {
  const texts = { connecting: "Connecting", live: "Live", lost: `Lost: again in ${Math.ceil(seconds)} s` };
  showState(byId("connection"), state, texts[state]);
}
