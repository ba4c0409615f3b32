'use strict';
// A certificate for one run of the plugin: self-signed, for the name localhost, by a
// key that never leaves the process. DER as in RFC 5280, as far as it takes.

const crypto = require('crypto');

function der(tag, ...parts) {
  const body = Buffer.concat(parts);
  if (body.length < 128) return Buffer.concat([Buffer.from([tag, body.length]), body]);
  const length = Buffer.from([body.length >> 8, body.length & 0xff]);
  return Buffer.concat([Buffer.from([tag, 0x82]), length, body]);
}
const sequence = (...parts) => der(0x30, ...parts);
const oid = (hex) => der(0x06, Buffer.from(hex, 'hex'));
const time = (at) => der(0x18, Buffer.from(`${at.toISOString().replace(/\.\d+Z/, '').replace(/[-:T]/g, '')}Z`));
const extension = (id, value) => sequence(oid(id), der(0x04, value));

// make returns the certificate and its key in PEM, and the certificate in DER.
exports.make = () => {
  const { privateKey, publicKey } = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const algorithm = sequence(oid('2a8648ce3d040302')); // ecdsa-with-SHA256
  const name = sequence(der(0x31, sequence(oid('550403'), der(0x0c, Buffer.from('localhost')))));
  const day = 24 * 3600 * 1000;
  const extensions = sequence(
    extension('551d13', sequence(der(0x01, Buffer.from([0xff])))), // basicConstraints: an authority, of itself
    extension('551d25', sequence(oid('2b06010505070301'), oid('2b06010505070302'))), // for servers and clients
    extension('551d11', sequence(der(0x82, Buffer.from('localhost')))), // subjectAltName
  );
  const content = sequence(
    der(0xa0, der(0x02, Buffer.from([2]))), // version 3
    der(0x02, Buffer.concat([Buffer.from([1]), crypto.randomBytes(15)])),
    algorithm, name, sequence(time(new Date(Date.now() - day)), time(new Date(Date.now() + 3650 * day))), name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, extensions),
  );
  const signature = der(0x03, Buffer.from([0]), crypto.sign('sha256', content, privateKey));
  const cert = sequence(content, algorithm, signature);
  const pem = `-----BEGIN CERTIFICATE-----\n${cert.toString('base64').replace(/(.{64})/g, '$1\n')}\n-----END CERTIFICATE-----\n`;
  return { der: cert, cert: Buffer.from(pem), key: Buffer.from(privateKey.export({ type: 'pkcs8', format: 'pem' })) };
};
