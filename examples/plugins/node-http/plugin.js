'use strict';
// A plugin of Dodona without its SDK, as docs/plugin-protocol.md describes it: the
// handshake with mutual TLS, the service Lifecycle, and how a process ends.

const fs = require('fs');
const net = require('net');
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const certificate = require('./certificate');

const MAX_MESSAGE = 16 << 20;
const { INVALID_ARGUMENT, FAILED_PRECONDITION, UNAVAILABLE, UNKNOWN } = grpc.status;

// log writes a line of the plugin's log. What is printed goes the same way: stdout is
// for the handshake.
function log(level, message, fields = {}) {
  fs.writeSync(2, `${JSON.stringify({ '@level': level, '@message': message, '@timestamp': new Date().toISOString(), ...fields })}\n`);
}
console.log = (...words) => log('info', words.join(' '));
process.on('uncaughtException', (err) => log('error', 'outside of any call', { error: String(err && err.stack) }));

// protos lie beside the plugin, or in the repository.
function load() {
  const own = path.join(__dirname, 'proto');
  const dir = fs.existsSync(own) ? own : path.join(__dirname, '../../../proto');
  const files = ['lifecycle', 'probe'].map((name) => `plugin/v1/${name}.proto`);
  return grpc.loadPackageDefinition(loader.loadSync(files, { includeDirs: [dir], longs: Number, enums: String, defaults: true, oneofs: true })).plugin.v1;
}

// plain turns a google.protobuf.Struct into an object.
function plain(struct) {
  const value = (v) => {
    switch (v.kind) {
      case 'structValue': return plain(v.structValue);
      case 'listValue': return (v.listValue.values || []).map(value);
      case 'nullValue': return null;
      default: return v[v.kind];
    }
  };
  return Object.fromEntries(Object.entries((struct && struct.fields) || {}).map(([k, v]) => [k, value(v)]));
}

// serve runs a probe until its host ends it. plugin has describe (a DescribeReply),
// configure(config), which returns what is wrong with it as violations, and
// check(request, config, signal), which returns a CheckReply or throws.
exports.serve = (plugin) => {
  if (process.argv.includes('--describe')) {
    process.stdout.write(`${JSON.stringify(plugin.describe)}\n`);
    return;
  }
  if (process.env.DONA_PLUGIN !== 'dona-plugin-v1') {
    process.stderr.write('this is a plugin of Dodona: the host starts it. Run it with --describe to see what it is.\n');
    process.exit(2);
  }
  if (!(process.env.PLUGIN_PROTOCOL_VERSIONS || '1').split(',').includes('1')) {
    process.stderr.write(`the host speaks plugin protocol ${process.env.PLUGIN_PROTOCOL_VERSIONS}, this plugin 1: upgrade this plugin\n`);
    process.exit(1);
  }

  const instances = new Map(); // configurations by instance_id
  let inflight = 0;
  let draining = null; // called when the last call has ended
  const settled = () => { if (draining && inflight === 0) draining(); };

  // answered makes an ordinary call of an async function: counted, refused while
  // draining, and with its errors as answers.
  const answered = (handler) => async (call, callback) => {
    if (draining) return callback({ code: UNAVAILABLE, details: 'plugin is draining' });
    inflight++;
    const ended = new AbortController();
    call.on('cancelled', () => ended.abort()); // also when its deadline has passed
    try {
      callback(null, await handler(call.request, ended.signal));
    } catch (err) {
      callback({ code: err.code > 0 ? err.code : UNKNOWN, details: String(err.message).slice(0, 1000) });
    }
    inflight--;
    settled();
    return undefined;
  };

  const drain = (deadline) => new Promise((done) => {
    draining = done;
    setTimeout(done, deadline);
    settled();
  });

  const { Lifecycle, Probe } = load();
  const server = new grpc.Server({ 'grpc.max_receive_message_length': MAX_MESSAGE, 'grpc.max_send_message_length': MAX_MESSAGE });
  server.addService(Lifecycle.service, {
    Describe: (call, callback) => callback(null, plugin.describe),
    Configure: answered(async (request) => {
      const config = plain(request.config);
      const violations = plugin.configure(config);
      if (violations.length === 0 && !request.validateOnly) {
        instances.delete(request.instanceId); // the newest is last
        instances.set(request.instanceId, config);
        if (instances.size > 16384) instances.delete(instances.keys().next().value);
      }
      return { violations };
    }),
    WatchHealth: (call) => { call.write({ state: 'STATE_HEALTHY' }); },
    Drain: (call, callback) => {
      const d = call.request.deadline || { seconds: 30, nanos: 0 };
      drain(d.seconds * 1000 + d.nanos / 1e6).then(() => callback(null, {}));
    },
  });
  server.addService(Probe.service, {
    Check: answered(async (request, signal) => {
      if (!instances.has(request.instanceId)) {
        throw Object.assign(new Error(`instance ${request.instanceId} is not configured`), { code: FAILED_PRECONDITION });
      }
      return plugin.check(request, instances.get(request.instanceId), signal);
    }),
  });

  // The end of the lifeline is the end of the host.
  const end = async (deadline) => { await drain(deadline); process.exit(0); };
  if (process.env.DONA_PLUGIN_LIFELINE) {
    const lifeline = new net.Socket({ fd: Number(process.env.DONA_PLUGIN_LIFELINE), readable: true, writable: false });
    lifeline.on('end', () => end(2000)).on('error', () => end(2000)).resume();
  }
  // Service managers signal hosts and plugins alike: the host may not be done.
  process.on('SIGTERM', () => setTimeout(() => end(1000), 3000));
  process.on('SIGINT', () => {});

  // The host's certificate is the only one that may call, and ours goes with the
  // handshake.
  let credentials = grpc.ServerCredentials.createInsecure();
  let own = '';
  if (process.env.PLUGIN_CLIENT_CERT) {
    const made = certificate.make();
    credentials = grpc.ServerCredentials.createSsl(Buffer.from(process.env.PLUGIN_CLIENT_CERT), [{ private_key: made.key, cert_chain: made.cert }], true);
    own = made.der.toString('base64').replace(/=+$/, '');
  }
  const socket = path.join(process.env.PLUGIN_UNIX_SOCKET_DIR, 'plugin.sock');
  server.bindAsync(`unix:${socket}`, credentials, (err) => {
    if (err) {
      log('error', 'cannot listen', { socket, error: err.message });
      process.exit(1);
    }
    process.stdout.write(`1|1|unix|${socket}|grpc|${own}\n`);
  });
};
exports.INVALID_ARGUMENT = INVALID_ARGUMENT;
