// The route statistics: one snapshot, its age, and how seldom it is refreshed.

import { byId, h, showState } from "./dom.js";
import { counted, number, tenths } from "./format.js";

const SUBSCRIPTION = `subscription Statistics {
  routeStatistics {
    age
    refreshes
    dirty
    routes(first: 1000) { originCode destinationCode flights delayed averageDelay }
  }
}`;
const MUTATION = `mutation Delay($id: ID!, $minutes: Int!) {
  delayFlight(id: $id, minutes: $minutes) { id delayedBy }
}`;
const MINUTES = 10;
const MOST_MINUTES = 24 * 60;
const ROWS = 8;

export class Statistics {
  constructor(socket, board) {
    this.board = board;
    this.clicks = 0;
    this.before = null; // refreshes that there had been at the first click
    this.minutes = new Map(); // by flight: the delay that was asked for last
    this.button = byId("delay");
    this.button.addEventListener("click", () => this.delay());
    setInterval(() => this.tick(), 100);
    socket.subscribe(SUBSCRIPTION, () => ({}), {
      next: (data) => this.receive(data.routeStatistics),
      error: (message) => showState(byId("freshness"), "lost", message),
      complete: () => showState(byId("freshness"), "lost", "Ended by the server"),
      lost: () => this.lost(),
    });
  }

  lost() {
    showState(byId("freshness"), "lost", "Not connected");
    this.clicks = 0; // another start of the service counts refreshes anew
    this.before = null;
    byId("clicks").textContent = byId("refreshes").textContent = "0";
  }

  receive(statistics) {
    this.shown = statistics;
    this.seen = performance.now();
    if (statistics.dirty) showState(byId("freshness"), "connecting", "Refresh on its way");
    else showState(byId("freshness"), "live", "Up to date");
    if (this.before !== null) byId("refreshes").textContent = number(statistics.refreshes - this.before);
    const routes = [...statistics.routes].sort((one, other) => other.delayed - one.delayed || other.flights - one.flights);
    byId("routes").tBodies[0].replaceChildren(...routes.slice(0, ROWS).map((route) => h("tr", { "data-delayed": route.delayed > 0 },
      h("th", { scope: "row" }, `${route.originCode} → ${route.destinationCode}`), h("td", {}, number(route.flights)),
      h("td", {}, number(route.delayed)), h("td", {}, route.averageDelay === null ? "–" : `${tenths(route.averageDelay)} min`))));
  }

  /** Delays the flights on the board one after the other, however many clicks there are. */
  async delay() {
    const flights = this.board.waiting();
    if (flights.length === 0) return;
    this.before ??= this.shown?.refreshes ?? 0;
    const { id, carrierCode, number: flight, delayedBy } = flights[this.clicks % flights.length];
    const minutes = Math.min((this.minutes.get(id) ?? delayedBy) + MINUTES, MOST_MINUTES);
    this.minutes.set(id, minutes);
    this.clicks += 1;
    byId("clicks").textContent = number(this.clicks);
    showState(byId("freshness"), "connecting", "Refresh on its way");
    try {
      const response = await fetch("graphql", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ query: MUTATION, variables: { id, minutes } }),
      });
      const answer = await response.json();
      if (answer.errors) throw new Error(answer.errors[0].message);
      byId("delayed").textContent = `${carrierCode} ${flight} leaves ${counted(minutes, "minute")} later.`;
    } catch (error) {
      byId("delayed").textContent = `Not delayed: ${error.message}`;
    }
  }

  tick() {
    this.button.disabled = this.board.waiting().length === 0;
    if (this.shown) byId("age").textContent = `${tenths(this.shown.age + (performance.now() - this.seen) / 1000)} s`;
  }
}
