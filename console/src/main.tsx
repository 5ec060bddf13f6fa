/** The start of the console: find the service, take up a session, show the page. */
import { render } from "preact";
import { asFailure, loadConfig } from "./api/http";
import { session } from "./api/session";
import { Shell } from "./app/shell";
import { followCodes, redeemCode } from "./app/signin";
import { followTheme } from "./app/theme";
import { followSchema } from "./sql/schema";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/parts.css";
import "./styles/query.css";
import "./styles/data.css";

async function start(): Promise<void> {
  followTheme();
  followSchema();
  let problem: string | null = null;
  try {
    await loadConfig();
    session.restore();
    problem = await redeemCode();
    followCodes();
  } catch (error) {
    problem = asFailure(error).message;
  }
  render(<Shell problem={problem} />, document.getElementById("root")!);
}

void start();
