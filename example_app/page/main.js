import { Board, showConnection } from "./board.js";
import { loadQuestions } from "./compare.js";
import { byId, remember, remembered } from "./dom.js";
import { Socket } from "./socket.js";
import { Statistics } from "./statistics.js";

const THEMES = ["system", "light", "dark"];

function showTheme(theme) {
  const root = document.documentElement;
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}

let theme = THEMES.includes(remembered("theme", "localStorage")) ? remembered("theme", "localStorage") : "system";
showTheme(theme);
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  showTheme(theme);
  remember("theme", theme, "localStorage");
});

loadQuestions();
const url = new URL("graphql", location.href);
url.protocol = url.protocol.replace("http", "ws");
const socket = new Socket(url, showConnection);
const board = new Board(socket);
new Statistics(socket, board);
