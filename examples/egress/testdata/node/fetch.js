// Fetches what it is told, a line of JSON each on stdin, through a proxy agent, and
// writes a line of JSON for each answer. It keeps its connections, as services do.
const {ProxyAgent, fetch} = require("undici"), readline = require("readline"), fs = require("fs");
const ca = fs.readFileSync(process.argv[2]), agents = new Map();

function agent(uri, token) {
  const key = uri + " " + token;
  // Without a tunnel, http:// goes in absolute form.
  if (!agents.has(key)) agents.set(key, new ProxyAgent({uri, token: token || undefined, proxyTunnel: false, requestTls: {ca}}));
  return agents.get(key);
}

// causes is what an error says, and what is behind it.
function causes(e) {
  const out = [];
  for (; e; e = e.cause) out.push([e.code, e.message].filter(Boolean).join(" "));
  return out.join(": ");
}

// ask tries the gateways in their order, the next one when nobody listens.
async function ask(q) {
  for (const [gateway, uri] of q.gateways.entries()) {
    try {
      const r = await fetch(q.url, {
        method: q.method, body: q.body || undefined, dispatcher: agent(uri, q.token), signal: AbortSignal.timeout(q.patience),
      });
      return {id: q.id, gateway, status: r.status, own: r.headers.get("proxy-status") || "", text: await r.text()};
    } catch (e) {
      const error = causes(e);
      if (error.includes("ECONNREFUSED") && gateway + 1 < q.gateways.length) continue;
      return {id: q.id, gateway, error};
    }
  }
}

const lines = readline.createInterface({input: process.stdin});
lines.on("line", async line => process.stdout.write(JSON.stringify(await ask(JSON.parse(line))) + "\n"));
lines.on("close", () => process.exit(0));
