// Subscriptions over one websocket, in the protocol graphql-transport-ws. It connects again when it is lost.

const FIRST_WAIT = 500; // milliseconds until it is tried again, doubled with every failure
const LONGEST_WAIT = 15_000;
const PATIENCE = 10_000; // until the server has answered, or is taken to be gone
const AGAIN = 1000; // until what the server has ended is asked for again
const PULSE = 20_000; // from one question whether it is still there to the next

export class Socket {
  /** @param url Where it connects. @param onState Told "connecting", "live" or "lost", with the seconds to wait. */
  constructor(url, onState) {
    this.url = url;
    this.onState = onState;
    this.subscriptions = new Map(); // by id; all of them are asked for again after a loss
    this.nextId = 1;
    this.failures = 0;
    this.live = false;
    window.addEventListener("online", () => { if (this.retry) this.connect(); });
    // A page that the browser keeps for the way back must not hold a connection.
    window.addEventListener("pagehide", () => this.socket?.close(1000));
    window.addEventListener("pageshow", (event) => { if (event.persisted) this.lost(); });
    this.connect();
  }

  /**
   * Subscribes, and returns a function that ends it. What is lost, or ended by the server, is asked for again, with
   * what `variables` says then. The handlers are `next`, `error`, `complete` and `lost`.
   */
  subscribe(query, variables, handlers) {
    const id = String(this.nextId++);
    this.subscriptions.set(id, { query, variables, ...handlers });
    if (this.live) this.start(id);
    return () => {
      const { open } = this.subscriptions.get(id);
      this.subscriptions.delete(id);
      if (open) this.send({ type: "complete", id });
    };
  }

  connect() {
    clearTimeout(this.retry);
    this.retry = null;
    this.onState("connecting");
    const socket = new WebSocket(this.url, "graphql-transport-ws");
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "connection_init" }));
    socket.onmessage = (event) => { if (socket === this.socket) this.receive(JSON.parse(event.data)); };
    socket.onclose = () => { if (socket === this.socket) this.lost(); };
    this.expectAnswer();
  }

  send(message) {
    this.socket.send(JSON.stringify(message));
  }

  start(id) {
    const subscription = this.subscriptions.get(id);
    subscription.open = true;
    this.send({ type: "subscribe", id, payload: { query: subscription.query, variables: subscription.variables() } });
  }

  receive(message) {
    clearTimeout(this.patience);
    const subscription = this.subscriptions.get(message.id);
    if (message.type === "connection_ack") {
      this.live = true;
      this.failures = 0;
      this.onState("live");
      this.pulse = setInterval(() => { this.send({ type: "ping" }); this.expectAnswer(); }, PULSE);
      for (const id of this.subscriptions.keys()) this.start(id);
    } else if (message.type === "ping") {
      this.send({ type: "pong" });
    } else if (message.type === "next") {
      if (message.payload.errors) subscription?.error(message.payload.errors[0].message);
      else subscription?.next(message.payload.data);
    } else if (message.type === "error" || message.type === "complete") {
      if (!subscription) return; // it was ended here
      subscription.open = false;
      if (message.type === "error") subscription.error(message.payload[0].message);
      else subscription.complete();
      setTimeout(() => {
        if (this.live && this.subscriptions.has(message.id) && !subscription.open) this.start(message.id);
      }, AGAIN);
    }
  }

  expectAnswer() {
    clearTimeout(this.patience);
    const { socket } = this;
    this.patience = setTimeout(() => {
      socket.close();
      if (socket === this.socket) this.lost(); // a close that is not answered takes long to be one
    }, PATIENCE);
  }

  lost() {
    this.live = false;
    for (const subscription of this.subscriptions.values()) {
      subscription.open = false;
      subscription.lost();
    }
    this.socket = null;
    clearInterval(this.pulse);
    clearTimeout(this.patience);
    clearTimeout(this.retry);
    const wait = Math.min(FIRST_WAIT * 2 ** this.failures, LONGEST_WAIT) * (0.75 + Math.random() / 2); // not all at once
    this.failures += 1;
    this.onState("lost", wait / 1000);
    this.retry = setTimeout(() => this.connect(), wait);
  }
}
