// Reads cases as JSON from its input, and prints what the rules of the client say of each. Its argument is the address
// of the client's sources.

import { text } from "node:stream/consumers";

const rules = (name) => import(`${process.argv[2]}/${name}.js`);
const [{ makeError, isSqlError, isLost, ...errors }, { Course, nothingWasApplied }, progress, statements, addresses] =
  await Promise.all(["errors", "retries", "progress", "statements", "addresses"].map(rules));
const given = JSON.parse(await text(process.stdin));

const CLIENT = { unreachable: errors.unreachable, answer_lost: errors.answerLost };

function make({ status, answer, retry_after_s, kind, retryable }) {
  if (kind !== undefined) return CLIENT[kind]("said", { retryable });
  return makeError(status, answer, null, retry_after_s === null ? null : retry_after_s * 1000);
}

const judged = given.errors.map((one) => {
  const error = make(one);
  const { isSettled, canRunAgain } = progress;
  return [isSqlError(error), isLost(error), nothingWasApplied(error), isSettled(error), canRunAgain(error)];
});

const courses = given.courses.map(({ retries, steps }) => {
  const course = new Course(10_000, retries);
  return steps.map(([index, now, chance]) => course.pauseMs(make(given.errors[index]), now, chance));
});

const STEPS = {
  next: (known) => known.nextSequence(),
  lower: (known, { error }) => known.lowerSequence(make(given.errors[error])),
  taken: (known) => known.noteTaken(),
  answer: (known, { answer }) => known.noteAnswer(answer),
  error: (known, { error }) => known.noteError(make(given.errors[error])),
  lose: (known) => known.lose(),
};
const lives = given.lives.map((steps) => {
  const known = new progress.Progress();
  return steps.map((step) => {
    const returned = STEPS[step.do](known, step) ?? null;
    return [returned, known.id, known.state, known.reason, known.isRunning, known.goesOn];
  });
});

const reads = given.statements.map((sql) => [
  statements.findKeyword(sql),
  statements.seemsToRead(sql),
  statements.dropStreamHint(sql),
]);
const urls = given.urls.map(([named, url]) => addresses.readControlUrl({ control_url: named }, url));

console.log(JSON.stringify({ judged, courses, lives, reads, urls }));
