'use strict';
// What the operators of targeting rules mean, as package match of the Go SDK has it.

const net = require('net');
const re2 = require('./re2');

const WRONG_TYPE = 'wrong type';
const UNSPECIFIED = 0, IN = 1, NOT_IN = 2, STARTS_WITH = 3, ENDS_WITH = 4, CONTAINS = 5, EXISTS = 6,
  NUM_LT = 7, NUM_LE = 8, NUM_GT = 9, NUM_GE = 10, SEMVER_LT = 11, SEMVER_GE = 12, CIDR = 13, MATCHES = 14;

const refuse = (what) => { throw new Error(what); };

// Numbers. A whole one is a BigInt, any other the nearest Number. JavaScript compares
// the two exactly.
const NUMBER = /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$/;

function number(value) {
  if (typeof value === 'bigint') return value;
  if (typeof value === 'string') {
    const found = NUMBER.exec(value);
    if (!found) return undefined;
    if (!found[2] && !found[3]) return BigInt(value);
    value = Number(value);
  }
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

// Versions, of semver.org 2.0.0. One v before is allowed.
const VERSION = /^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?$/;

function version(value) {
  const found = typeof value === 'string' && VERSION.exec(value);
  if (!found) return undefined;
  const ids = found[4] === undefined ? [] : found[4].split('.').map((s) => (/^\d+$/.test(s) ? BigInt(s) : s));
  return { core: found.slice(1, 4).map(BigInt), ids };
}

function before(a, b) {
  for (let i = 0; i < 3; i++) if (a.core[i] !== b.core[i]) return a.core[i] < b.core[i];
  if (a.ids.length === 0 || b.ids.length === 0) return a.ids.length > 0 && b.ids.length === 0;
  for (let i = 0; ; i++) {
    const x = a.ids[i], y = b.ids[i];
    if (x === undefined || y === undefined) return x === undefined && y !== undefined;
    if (typeof x !== typeof y) return typeof x === 'bigint'; // numbers come before names
    if (x !== y) return x < y;
  }
}

// Addresses, as {bits, width}. A mapped one (::ffff:10.0.0.1) is of IPv4.
function address(value) {
  const a = bare(value);
  return a && a.mapped ? { bits: a.bits & 0xffffffffn, width: 32 } : a;
}

function bare(value) {
  if (typeof value !== 'string' || value.includes('%')) return undefined;
  if (net.isIPv4(value)) return { bits: value.split('.').reduce((n, d) => n << 8n | BigInt(d), 0n), width: 32 };
  if (!net.isIPv6(value)) return undefined;
  const groups = value.replace(/(\d+)\.(\d+)\.(\d+)\.(\d+)$/, (_, ...d) => `${(d[0] << 8 | d[1]).toString(16)}:${(d[2] << 8 | d[3]).toString(16)}`);
  const [left, right] = groups.split('::').map((s) => s.split(':').filter((g) => g !== ''));
  const all = right === undefined ? left : [...left, ...Array(8 - left.length - right.length).fill('0'), ...right];
  const bits = all.reduce((n, g) => n << 16n | BigInt('0x' + g), 0n);
  return { bits, width: 128, mapped: bits >> 32n === 0xffffn };
}

function prefix(value) {
  const whole = address(value);
  if (whole) return { ...whole, length: whole.width };
  const at = value.lastIndexOf('/');
  const a = at >= 0 ? bare(value.slice(0, at)) : undefined;
  const text = value.slice(at + 1);
  if (!a || !/^(0|[1-9][0-9]{0,2})$/.test(text) || Number(text) > a.width) return undefined;
  const length = Number(text);
  return a.mapped && length >= 96 ? { bits: a.bits & 0xffffffffn, width: 32, length: length - 96 } : { ...a, length };
}

const within = (a, p) => a.width === p.width && (a.bits ^ p.bits) >> BigInt(p.width - p.length) === 0n;

const text = (v) => (typeof v === 'string' ? v : undefined);
const filled = (v) => v || undefined;

// How each operator reads an attribute and a value, and when they match.
const operators = {
  [STARTS_WITH]: [text, filled, (a, v) => a.startsWith(v)],
  [ENDS_WITH]: [text, filled, (a, v) => a.endsWith(v)],
  [CONTAINS]: [text, filled, (a, v) => a.includes(v)],
  [NUM_LT]: [number, number, (a, v) => a < v],
  [NUM_LE]: [number, number, (a, v) => a <= v],
  [NUM_GT]: [number, number, (a, v) => a > v],
  [NUM_GE]: [number, number, (a, v) => a >= v],
  [SEMVER_LT]: [version, version, before],
  [SEMVER_GE]: [version, version, (a, v) => !before(a, v)],
  [CIDR]: [address, prefix, within],
  [MATCHES]: [text, (v) => (v === '' ? undefined : re2.compile(v)), (a, found) => found(a)],
};

// prepare returns a function that judges the value of an attribute: a string, a
// number, a bigint, a boolean, or undefined when the request has none. It gives true,
// false or WRONG_TYPE. A rule that cannot be followed throws.
function prepare({ attribute, operator, values, variant }) {
  if (!attribute || !variant) refuse('a rule needs an attribute and a variant');
  if (operator === EXISTS) {
    if (values.length > 0) refuse('EXISTS takes no values');
    return (value) => value !== undefined;
  }
  if (values.length === 0 || values.length > 1000) refuse(`${values.length} values: allowed are 1 to 1000`);
  for (const v of values) if (Buffer.byteLength(v) > 1024) refuse('a value has more than 1024 bytes');
  if (operator === UNSPECIFIED || operator === IN || operator === NOT_IN) {
    return (value) => value !== undefined && (typeof value !== 'string' ? WRONG_TYPE : values.includes(value) === (operator !== NOT_IN));
  }
  if (!operators[operator]) refuse(`operator ${operator} is not known here`);
  const [read, parse, match] = operators[operator];
  const parsed = values.map((v) => {
    const p = parse(v);
    return p === undefined ? refuse(`value ${JSON.stringify(v.slice(0, 64))} is none of operator ${operator}`) : p;
  });
  return (value) => {
    if (value === undefined) return false;
    const a = read(value);
    return a === undefined ? WRONG_TYPE : parsed.some((v) => match(a, v));
  };
}

module.exports = { prepare, WRONG_TYPE };
