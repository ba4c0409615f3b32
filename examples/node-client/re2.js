'use strict';
// Patterns of RE2, matched in time that is linear in the text: JavaScript's own regular
// expressions backtrack and read some patterns otherwise.
//
// What is followed: text, . [classes] with ranges and ^, \d \w \s \b and their
// opposites, \f \n \r \t \v, \xHH, escaped ASCII punctuation, ^ $ (of the whole text),
// groups ( ) and (?: ), |, and * + ? {n} {n,} {n,m}, lazy ones too. Everything else
// throws: flags and names in groups, \p, \x{}, \Q, \A, \z, [:names:], braces that are
// no repetition, and what RE2 has not either (look-around, back references).

const MAX_REPEAT = 1000;
const MAX_STEPS = 10000;

const between = (low, high) => (c) => c >= low && c <= high;
const is = (text) => { const all = [...text].map((c) => c.codePointAt(0)); return (c) => all.includes(c); };
const not = (test) => (c) => !test(c);
const any = (tests) => (c) => tests.some((t) => t(c));

const digit = between(0x30, 0x39);
const word = any([digit, between(0x41, 0x5a), between(0x61, 0x7a), is('_')]);
const space = is('\t\n\f\r ');
const perl = { d: digit, D: not(digit), w: word, W: not(word), s: space, S: not(space) };
const control = { f: '\f', n: '\n', r: '\r', t: '\t', v: '\v' };

class Parser {
  constructor(pattern) { this.rest = [...pattern]; this.at = 0; this.pattern = pattern; }

  fail(what) { throw new Error(`pattern ${JSON.stringify(this.pattern.slice(0, 64))}: ${what} is not followed here`); }
  peek(n = 0) { return this.rest[this.at + n]; }
  next() { return this.rest[this.at++]; }
  take(c) { return this.peek() === c && ++this.at > 0; }

  alternatives() {
    const all = [this.sequence()];
    while (this.take('|')) all.push(this.sequence());
    return all.length === 1 ? all[0] : { alternatives: all };
  }

  sequence() {
    const sequence = [];
    for (let c = this.peek(); c !== undefined && c !== '|' && c !== ')'; c = this.peek()) sequence.push(this.repeated());
    return { sequence };
  }

  repeated() {
    const node = this.atom();
    const limits = this.repetition();
    if (!limits) return node;
    this.take('?'); // a lazy one finds a match in the same texts
    if (node.assert || this.repetition()) this.fail('a repetition of that');
    const [min, max] = limits;
    const repeats = Math.max(min, max === Infinity ? 1 : max) * (node.repeats || 1);
    if (repeats > MAX_REPEAT || min > max) this.fail('such a repetition');
    return { repeat: node, min, max, repeats };
  }

  repetition() {
    if (this.take('*')) return [0, Infinity];
    if (this.take('+')) return [1, Infinity];
    if (this.take('?')) return [0, 1];
    if (this.peek() !== '{') return undefined;
    const found = /^\{(0|[1-9]\d{0,4})(,(0|[1-9]\d{0,4})?)?\}/.exec(this.rest.slice(this.at, this.at + 16).join(''));
    if (!found) this.fail('a brace');
    this.at += found[0].length;
    const min = Number(found[1]);
    return [min, !found[2] ? min : found[3] === undefined ? Infinity : Number(found[3])];
  }

  atom() {
    const c = this.next();
    switch (c) {
      case '(': {
        if (this.take('?') && !this.take(':')) this.fail('(?' + (this.peek() || ''));
        const node = this.alternatives();
        if (!this.take(')')) this.fail('an open group');
        return { sequence: [node], repeats: most(node) };
      }
      case '[': return this.set();
      case '.': return { test: not(is('\n')) };
      case '^': case '$': return { assert: c };
      case '*': case '+': case '?': case '{': return this.fail(`a ${c} with nothing before it`);
      case '\\':
        if (this.peek() === 'b' || this.peek() === 'B') return { assert: this.next() };
        return this.escape();
      default: return { test: is(c) };
    }
  }

  // escape gives {test} of what follows a backslash, and {literal} of a single character.
  escape() {
    const c = this.next();
    if (c === undefined) this.fail('a backslash at the end');
    if (perl[c]) return { test: perl[c] };
    let literal = control[c];
    if (c === 'x') {
      const hex = this.next() + this.next();
      if (!/^[0-9a-fA-F]{2}$/.test(hex)) this.fail('\\x' + hex);
      literal = String.fromCodePoint(parseInt(hex, 16));
    } else if (/^[!-/:-@[-`{-~]$/.test(c)) {
      literal = c;
    }
    if (literal === undefined) this.fail('\\' + c);
    return { test: is(literal), literal };
  }

  set() {
    const negated = this.take('^');
    const tests = [];
    const one = () => {
      const c = this.next();
      if (c === undefined || c === '[') this.fail('such a class');
      return c === '\\' ? this.escape() : { test: is(c), literal: c };
    };
    do {
      if (tests.length === 0 && this.peek() === ']') this.fail('a class that begins with ]');
      const low = one();
      if (low.literal !== undefined && this.peek() === '-' && this.peek(1) !== ']') {
        this.next();
        const high = one();
        if (high.literal === undefined || high.literal.codePointAt(0) < low.literal.codePointAt(0)) this.fail('such a range');
        tests.push(between(low.literal.codePointAt(0), high.literal.codePointAt(0)));
      } else {
        tests.push(low.test);
      }
    } while (!this.take(']'));
    return { test: negated ? not(any(tests)) : any(tests) };
  }
}

// most is how often a part of the node is repeated.
function most(node) {
  return Math.max(node.repeats || 1, ...[...(node.sequence || []), ...(node.alternatives || [])].map(most));
}

// emit appends the steps of a node. A split goes on at two places.
function emit(program, node) {
  if (program.length > MAX_STEPS) throw new Error('pattern is too long with its repetitions counted out');
  if (node.sequence) {
    for (const n of node.sequence) emit(program, n);
  } else if (node.alternatives) {
    const ends = [];
    node.alternatives.forEach((n, i) => {
      if (i === node.alternatives.length - 1) { emit(program, n); return; }
      const split = program.push({ split: [program.length + 1] }) - 1;
      emit(program, n);
      ends.push(program.push({ split: [] }) - 1);
      program[split].split.push(program.length);
    });
    for (const e of ends) program[e].split.push(program.length);
  } else if (node.repeat) {
    for (let i = 0; i < node.min; i++) emit(program, node.repeat);
    if (node.max === Infinity) {
      const split = program.push({ split: [program.length + 1] }) - 1;
      emit(program, node.repeat);
      program.push({ split: [split] });
      program[split].split.push(program.length);
    } else {
      const splits = [];
      for (let i = node.min; i < node.max; i++) {
        splits.push(program.push({ split: [program.length + 1] }) - 1);
        emit(program, node.repeat);
      }
      for (const s of splits) program[s].split.push(program.length);
    }
  } else {
    program.push(node);
  }
}

// compile returns a function that says whether the pattern is found in a text.
function compile(pattern) {
  const parser = new Parser(pattern);
  const node = parser.alternatives();
  if (parser.peek() !== undefined) parser.fail('a ) without its (');
  const program = [];
  emit(program, node);
  const end = program.length;

  return (text) => {
    const codes = [...text].map((c) => c.codePointAt(0));
    const isWord = (i) => i >= 0 && i < codes.length && word(codes[i]);
    const asserted = {
      '^': (i) => i === 0,
      $: (i) => i === codes.length,
      b: (i) => isWord(i - 1) !== isWord(i),
      B: (i) => isWord(i - 1) === isWord(i),
    };
    // All places in the program at once, as Thompson does it.
    let now = [];
    for (let i = 0; ; i++) {
      const seen = new Uint8Array(end + 1);
      const places = [];
      for (const stack = [0, ...now]; stack.length > 0;) {
        const at = stack.pop();
        if (seen[at]) continue;
        seen[at] = 1;
        if (at === end) return true;
        const step = program[at];
        if (step.split) stack.push(...step.split);
        else if (step.assert) { if (asserted[step.assert](i)) stack.push(at + 1); } else places.push(at);
      }
      if (i === codes.length) return false;
      now = places.filter((at) => program[at].test(codes[i])).map((at) => at + 1);
    }
  };
}

module.exports = { compile };
