#!/usr/bin/env node
'use strict';
// A probe plugin in Node.js: an endpoint is well when it answers a request with a
// good status in time.

const http = require('http');
const { serve } = require('./plugin');

const schema = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  additionalProperties: false,
  properties: { path: { type: 'string', pattern: '^/', description: 'what is asked for; / without it' } },
};

// configure returns what is wrong with a configuration.
function configure(config) {
  const violations = Object.keys(config).filter((key) => key !== 'path')
    .map((key) => ({ path: `/${key}`, message: 'is no field: allowed is path' }));
  if ('path' in config && !(typeof config.path === 'string' && config.path.startsWith('/'))) {
    violations.push({ path: '/path', message: 'has to begin with /' });
  }
  return violations;
}

const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });

// check asks the endpoint once. signal ends it early; what is not the endpoint's
// fault is thrown, which makes the check inconclusive.
function check(request, config, signal) {
  const began = process.hrtime.bigint();
  const took = () => {
    const ns = Number(process.hrtime.bigint() - began);
    return { seconds: Math.floor(ns / 1e9), nanos: ns % 1e9 };
  };
  const t = request.timeout || { seconds: 0, nanos: 0 };
  const timeout = AbortSignal.timeout(Math.min(Math.max(t.seconds * 1000 + t.nanos / 1e6, 1), 60000));
  return new Promise((answer, fail) => {
    const failure = (errorClass, detail) => answer({ result: 'RESULT_FAILURE', errorClass, detail, latency: took() });
    const [, host, port] = /^\[?([^\]]+)\]?:(\d+)$/.exec(request.endpointAddress) || [];
    if (!port) throw new Error('the endpoint has no host and port');
    const asked = http.get({ host, port, path: config.path || '/', agent, signal: AbortSignal.any([signal, timeout]) }, (reply) => {
      reply.resume();
      const status = reply.statusCode;
      const good = request.expectStatus.length > 0 ? request.expectStatus.includes(status) : status >= 200 && status <= 399;
      if (good) answer({ result: 'RESULT_SUCCESS', status, latency: took() });
      else answer({ result: 'RESULT_FAILURE', errorClass: 'ERROR_CLASS_TARGET_STATUS', status, latency: took() });
    });
    asked.on('error', (err) => {
      if (timeout.aborted) failure('ERROR_CLASS_TIMEOUT', 'no answer in time');
      else if (err.code === 'ECONNREFUSED') failure('ERROR_CLASS_REFUSED', 'connection refused');
      else if (err.code === 'ECONNRESET') failure('ERROR_CLASS_RESET', 'connection reset');
      else fail(err);
    });
  });
}

serve({
  describe: {
    name: 'node-http', version: '0.1.0', kind: 'KIND_PROBE', summary: 'a request to an endpoint, from Node.js',
    configSchema: JSON.stringify(schema), capabilities: [], maxConcurrency: 64, sdkVersion: '',
  },
  configure,
  check,
});
