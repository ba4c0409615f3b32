'use strict';
// The rules of the service plane that a client has to follow, in plain JavaScript:
// buckets, the checksum of a snapshot, how a delta is applied, and the decision.
// Messages are as @grpc/proto-loader gives them with the options of load().

const crypto = require('crypto');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { prepare, WRONG_TYPE } = require('./match');

// load reads the contract. protos is the folder that holds dona/v1.
function load(protos) {
  const definition = loader.loadSync('dona/v1/control.proto',
    { includeDirs: [path.resolve(protos)], keepCase: true, longs: String, defaults: true, arrays: true, objects: true });
  const service = definition['dona.v1.ControlPlane'];
  return {
    ControlPlane: grpc.loadPackageDefinition(definition).dona.v1.ControlPlane,
    parse: service.WatchConfig.responseDeserialize,
  };
}

const sha256 = (...parts) => parts.reduce((h, p) => h.update(p), crypto.createHash('sha256')).digest();

// ---------------------------------------------------------------- buckets

const MASK = (1n << 64n) - 1n;

// bucket is dona-bucket-v1: 0 to 9999.
function bucket(unit, flag) {
  let h = 0xcbf29ce484222325n;
  for (const byte of Buffer.concat([Buffer.from(unit), Buffer.from([0]), Buffer.from(flag)])) {
    h = ((h ^ BigInt(byte)) * 0x100000001b3n) & MASK;
  }
  h ^= h >> 33n; h = (h * 0xff51afd7ed558ccdn) & MASK;
  h ^= h >> 33n; h = (h * 0xc4ceb9fe1a85ec53n) & MASK;
  h ^= h >> 33n;
  return Number(h % 10000n);
}

// --------------------------------------------------------------- checksum

function varint(v) {
  v = BigInt.asUintN(64, BigInt(v));
  const out = [];
  for (; v > 127n; v >>= 7n) out.push(Number(v & 127n) | 128);
  out.push(Number(v));
  return Buffer.from(out);
}

const element = (field, value) => {
  const bytes = Buffer.isBuffer(value) ? value : Buffer.from(value);
  return Buffer.concat([varint(field << 3 | 2), varint(bytes.length), bytes]);
};
const none = Buffer.alloc(0);
const text = (field, value) => (value ? element(field, value) : none);
const number = (field, value) => (BigInt(value) === 0n ? none : Buffer.concat([varint(field << 3), varint(value)]));
const entries = (field, map) => Object.keys(map || {}).sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)))
  .map((k) => element(field, Buffer.concat([element(1, k), varint(2 << 3), varint(map[k])])));

// The canonical bytes of each kind of item.
const canonical = {
  endpoint: (e) => Buffer.concat([text(1, e.id), text(2, e.address), text(3, e.variant), text(4, e.region), number(5, e.lb_weight), text(6, e.zone)]),
  weight: (w) => Buffer.concat([text(1, w.variant), number(2, w.weight)]),
  flag: (f) => Buffer.concat([text(1, f.flag), text(2, f.service),
    ...f.targeting.map((t) => element(3, Buffer.concat([text(1, t.attribute), number(2, t.operator), ...t.values.map((v) => element(3, v)), text(4, t.variant)]))),
    number(4, f.rollout_percent), text(5, f.rollout_variant), number(6, f.disabled ? 1 : 0), number(7, f.hash_version), number(8, f.version)]),
  residency: (r) => Buffer.concat([...r.allowed_regions.map((v) => element(1, v)), text(2, r.rule_id)]),
  plan: (p) => Buffer.concat([text(1, p.strategy), number(3, p.algorithm), ...entries(4, p.weights), ...entries(5, p.group_weights), ...entries(6, p.group_tiers),
    p.hash ? element(7, Buffer.concat([number(1, p.hash.source), text(2, p.hash.name)])) : none, number(8, p.choices), number(9, p.max_load_percent)]),
};

const u32 = (n) => { const b = Buffer.alloc(4); b.writeUInt32BE(n); return b; };
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64BE(BigInt(n)); return b; };

function item(kind, id, bytes) {
  id = Buffer.isBuffer(id) ? id : Buffer.from(id);
  return BigInt('0x' + sha256(Buffer.from([kind]), u32(id.length), id, sha256(bytes)).toString('hex'));
}

// checksum is that of a whole snapshot.
function checksum(s) {
  const items = [
    ...s.endpoints.map((e) => item(1, e.id, canonical.endpoint(e))),
    ...s.weights.map((w, i) => item(2, Buffer.concat([u32(i), Buffer.from(w.variant)]), canonical.weight(w))),
    ...s.flags.map((f) => item(3, f.flag, canonical.flag(f))),
    ...s.quarantined_variants.map((v) => item(6, v, none)),
  ];
  const residency = s.residency ? canonical.residency(s.residency) : none;
  if (residency.length > 0) items.push(item(4, '', residency));
  if (s.plan) items.push(item(5, '', canonical.plan(s.plan)));
  const sum = items.reduce((a, b) => (a + b) & ((1n << 256n) - 1n), 0n);
  return sha256('dona-snapshot-v1', u64(items.length), Buffer.from(sum.toString(16).padStart(64, '0'), 'hex'));
}

// ----------------------------------------------------------------- frames

const FULL = 1, DELTA = 2, UNCHANGED = 3;
const sections = { 1: 'weights', 2: 'residency', 3: 'plan', 4: 'quarantined_variants' };

// apply returns the snapshot that a frame makes of the one held. It throws when the
// frame does not fit or does not come to its checksum: then ask for a full one.
function apply(held, frame) {
  let next = frame;
  if (frame.form === UNCHANGED) {
    if (!held || held.version !== frame.version || (frame.checksum.length > 0 && !frame.checksum.equals(held.checksum))) {
      throw new Error(`version ${frame.version} is called unchanged and is not held`);
    }
    return held;
  }
  if (![0, FULL, DELTA].includes(frame.form)) throw new Error(`form ${frame.form} is not known here`);
  if (frame.form === DELTA) {
    if (!held || held.version !== frame.base_version) throw new Error(`delta against version ${frame.base_version}, held is ${held && held.version}`);
    next = { ...held, version: frame.version, checksum: frame.checksum,
      endpoints: edit(held.endpoints, frame.endpoints, frame.removed_endpoints, 'id'),
      flags: edit(held.flags, frame.flags, frame.removed_flags, 'flag') };
    for (const s of frame.replaced) {
      if (!sections[s]) throw new Error(`delta replaces section ${s}, which is not known here`);
      next[sections[s]] = frame[sections[s]];
    }
  }
  const sum = checksum(next);
  if (!sum.equals(frame.checksum)) throw new Error(`checksum of version ${frame.version} is ${sum.toString('hex')}, announced was ${frame.checksum.toString('hex')}`);
  return { ...next, form: FULL };
}

function edit(list, put, removed, key) {
  const all = new Map(list.map((e) => [e[key], e]));
  for (const id of removed) {
    if (!all.delete(id)) throw new Error(`delta removes ${id}, which is not held`);
  }
  for (const e of put) all.set(e[key], e);
  return [...all.values()];
}

// --------------------------------------------------------------- decision

const REASON = { TARGETING_MATCH: 1, SPLIT: 2, DEFAULT: 3 };

// decide gives {variant, endpoint, kind, flag, exposures, typeErrors} or throws. request
// is {unit, attributes, regions, tried}; attributes are strings, numbers, bigints and
// booleans. A flag with a rule that cannot be followed gives no variant, as the rules
// ask: re2.js says which patterns are not. Among the endpoints of the variant it draws
// by weight: it executes no plan.
function decide(s, request) {
  const { unit = '', attributes = {}, regions = [], tried = [] } = request;
  const lists = [(s.residency && s.residency.allowed_regions) || [], regions].filter((l) => l.length > 0);
  const legal = s.endpoints.filter((e) => e.lb_weight > 0 && lists.every((l) => e.region !== '' && l.includes(e.region)));
  if (legal.length === 0) throw new Error(lists.length > 0 ? `residency: no endpoint in ${lists.join(' and ')}` : 'unavailable: no endpoint');
  const usable = (v) => !s.quarantined_variants.includes(v) && legal.some((e) => e.variant === v);

  const exposures = [];
  let typeErrors = 0;
  let out;
  for (const f of [...s.flags].sort((a, b) => Buffer.compare(Buffer.from(a.flag), Buffer.from(b.flag)))) {
    const judges = f.disabled || f.hash_version > 1 ? undefined : prepared(f);
    if (!judges) continue;
    const rule = f.targeting.find((t, i) => {
      const verdict = judges[i](attributes[t.attribute]);
      if (verdict === WRONG_TYPE) typeErrors++;
      return verdict === true;
    });
    const inside = f.rollout_percent >= 100 || (unit !== '' && bucket(unit, f.flag) < f.rollout_percent * 100);
    const variant = rule ? rule.variant : inside ? f.rollout_variant : '';
    if (variant === '') {
      exposures.push({ flag: f.flag, variant: '', reason: REASON.DEFAULT });
    } else if (usable(variant)) {
      exposures.push({ flag: f.flag, variant, reason: rule ? REASON.TARGETING_MATCH : REASON.SPLIT });
      out = { variant, kind: rule ? 'flag_targeting' : 'flag_rollout', flag: f.flag };
      break;
    }
  }
  let pool;
  if (!out && s.weights.length === 0) {
    pool = legal.filter((e) => usable(e.variant));
    out = { kind: new Set(pool.map((e) => e.variant)).size === 1 ? 'only_variant' : 'weight' };
  } else if (!out) {
    const shares = s.weights.filter((w) => w.weight > 0 && usable(w.variant));
    const total = shares.reduce((a, w) => a + w.weight, 0);
    if (total === 0) throw new Error('unavailable: no variant with weight has an endpoint that may serve');
    const place = (unit !== '' ? bucket(unit, `@weights/${s.service}`) : Math.floor(Math.random() * 10000)) * total;
    let end = 0;
    out = { kind: 'weight', variant: shares.find((w) => place < (end += w.weight) * 10000).variant };
  }
  pool = (pool || legal.filter((e) => e.variant === out.variant)).filter((e) => !tried.includes(e.id));
  if (pool.length === 0) throw new Error('unavailable: no endpoint of the variant is left');
  let draw = Math.random() * pool.reduce((a, e) => a + e.lb_weight, 0);
  const endpoint = pool.find((e) => (draw -= e.lb_weight) < 0) || pool[pool.length - 1];
  return { flag: '', ...out, variant: endpoint.variant, endpoint, typeErrors, exposures: unit === '' ? [] : exposures };
}

// prepared gives the judges of a flag's rules, undefined when one cannot be followed.
// They are kept as long as the flag: a delta keeps the flags that it does not name.
const judgesOf = new WeakMap();

function prepared(flag) {
  if (!judgesOf.has(flag)) {
    let judges;
    try {
      judges = flag.targeting.map(prepare);
    } catch {
      // Not this flag; the others work.
    }
    judgesOf.set(flag, judges);
  }
  return judgesOf.get(flag);
}

module.exports = { load, bucket, checksum, apply, decide, sha256, grpc };
