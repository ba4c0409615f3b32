'use strict';
// Answers questions from another implementation, for tests that compare the two: a
// JSON object on stdin, one on stdout.

const path = require('path');
const dona = require('./dona');
const { prepare, WRONG_TYPE } = require('./match');

const questions = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const { parse } = dona.load(path.join(questions.protos));
const frame = (text) => parse(Buffer.from(text, 'base64'));

// An attribute is written as {text}, {int}, {float}, {bool} or {}.
function value({ text, int, float, bool }) {
  if (int !== undefined) return BigInt(int);
  if (float !== undefined) return Number(float);
  return text !== undefined ? text : bool;
}

function judge({ operator, values, cases = [] }) {
  let judged;
  try {
    judged = prepare({ attribute: 'a', variant: 'v', operator, values });
  } catch {
    return 'refused';
  }
  return cases.map((c) => ({ true: 'yes', false: 'no', [WRONG_TYPE]: 'type' })[judged(value(c))]).join(' ');
}

process.stdout.write(JSON.stringify({
  buckets: questions.buckets.map(({ unit, flag }) => dona.bucket(unit, flag)),
  // Each history is a full frame and the deltas after it.
  checksums: questions.histories.map((frames) => {
    let held = null;
    return frames.map((f) => {
      held = dona.apply(held, frame(f));
      return dona.checksum(held).toString('hex');
    });
  }),
  decisions: questions.decisions.map(({ snapshot, unit, attributes }) => {
    const { variant, kind, flag } = dona.decide(frame(snapshot), { unit, attributes });
    return `${variant} ${kind} ${flag}`;
  }),
  operators: questions.operators.map(judge),
}));
