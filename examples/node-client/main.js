'use strict';
// A client of the service plane: it watches a service, decides for users by the
// newest snapshot and reports what came of it, until it is interrupted.
//
//   npm install
//   node main.js 127.0.0.1:7600 checkout [folder of the protos]

const crypto = require('crypto');
const path = require('path');
const dona = require('./dona');

const [host, service, protos = path.join(__dirname, '../../proto')] = process.argv.slice(2);
if (!service) {
  console.error('usage: node main.js host:port service [folder of the protos]');
  process.exit(2);
}
const { ControlPlane } = dona.load(protos);
const api = new ControlPlane(host, dona.grpc.credentials.createInsecure(), { 'grpc.max_receive_message_length': 8 << 20 });

// The host knows this client by one name: what it reports of a version counts for
// the watch of that name.
const name = `node-${crypto.randomBytes(8).toString('hex')}`;

let held = null; // the newest snapshot
let batch = empty();

// watch keeps held up to date. A frame that does not fit ends the stream, is
// reported, and the next one begins with a full frame.
function watch(failures, full) {
  const known = held && !full;
  const stream = api.WatchConfig({ service, client_id: name, accept_delta: true,
    last_version: known ? held.version : 0, last_checksum: known ? held.checksum : Buffer.alloc(0) });
  let ended = false;
  const again = (damaged) => {
    if (ended) return;
    ended = true;
    stream.cancel();
    const most = Math.min(30000, 500 * 2 ** failures);
    setTimeout(() => watch(failures + 1, damaged), Math.random() * most);
  };
  stream.on('data', (frame) => {
    if (ended) return;
    const reject = (why, damaged) => {
      applied({ version: frame.version, rejected_reason: why });
      console.log(`rejected ${frame.version}: ${why}`);
      again(damaged);
    };
    // A host that is behind: the next watch tells it what is held here.
    if (held && BigInt(frame.version) < BigInt(held.version)) {
      reject(`version ${frame.version} is lower than ${held.version}, which is held`, false);
      return;
    }
    try {
      held = dona.apply(held, frame);
    } catch (err) {
      reject(err.message, true);
      return;
    }
    failures = 0;
    applied({ version: held.version });
    console.log(`version ${held.version} with ${held.endpoints.length} endpoints`);
  });
  stream.on('error', (err) => { if (!ended) console.log(`watch: ${err.message}`); again(false); });
  stream.on('end', () => again(false));
}

// applied notes what became of a version. The last word counts; a few rejections
// before it are told too.
function applied(word) {
  batch.applied = [...batch.applied.filter((a) => a.rejected_reason).slice(-8), { service, ...word }];
}

// serve stands for a request: decide, call the endpoint, note how it went.
function serve(unit) {
  const { variant, endpoint, exposures } = dona.decide(held, { unit });
  const unix_ms = Date.now();
  for (const e of exposures) {
    batch.exposures.push({ ...e, service, unit_digest: dona.sha256(unit), unix_ms, config_version: held.version });
  }
  if (held.residency && held.residency.allowed_regions.length > 0) {
    batch.audits.push({ service, unix_ms, decision: 1, ...held.residency, endpoint_id: endpoint.id, endpoint_region: endpoint.region, config_version: held.version, count: 1 });
  }
  batch.calls.push({ service, variant, endpoint_id: endpoint.id, success: true, latency_us: 1000, code: 'OK', unix_ms, config_version: held.version, count: 1 });
}

function empty() {
  return { calls: [], exposures: [], audits: [], applied: [] };
}

// report sends one batch after the other, each with the same content until a host
// has acknowledged it, so that it counts once.
let sequence = 0;
function report() {
  const sent = batch;
  if (sent.calls.length + sent.exposures.length + sent.applied.length === 0) {
    setTimeout(report, 100);
    return;
  }
  batch = empty();
  sequence++;
  const send = (failures) => api.ReportStats({ ...sent, reporter_id: name, sequence }, { deadline: Date.now() + 10000 }, (err) => {
    if (!err) {
      setTimeout(report, 100);
      return;
    }
    console.log(`report: ${err.message}`);
    setTimeout(() => send(failures + 1), Math.random() * Math.min(30000, 500 * 2 ** failures));
  });
  send(0);
}

watch(0, false);
report();
let user = 0;
setInterval(() => {
  if (!held || batch.calls.length > 1000) return;
  try {
    serve(`user-${user++}`);
  } catch (err) {
    console.log(err.message);
  }
}, 20);
