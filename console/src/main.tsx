/** The start of the console: find the service, take up a session, show the page. */
import { render } from "preact";
import { asFailure, loadConfig } from "./api/http";
import { session, takeTold } from "./api/session";
import { Shell } from "./app/shell";
import { followCodes, redeemCode, takeCode } from "./app/signin";
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
  let problem = takeTold();
  const code = takeCode();
  try {
    await loadConfig();
    session.restore();
    if (code) problem = await redeemCode(code);
    followCodes();
  } catch (error) {
    problem = asFailure(error).message;
  }
  render(<Shell problem={problem} />, document.getElementById("root")!);
}

void start();
