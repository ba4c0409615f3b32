package decide

// WithoutScreen returns the program with every rule of every flag gone through.
func WithoutScreen(p *Program) *Program {
	q := &Program{service: p.service, version: p.version, endpoints: p.endpoints, details: p.details, variants: p.variants,
		flags: p.flags, names: p.names, values: p.values, texts: p.texts, weights: p.weights, weightsKey: p.weightsKey, keys: p.keys,
		policy: p.policy, ruleID: p.ruleID, plan: p.plan, hash: p.hash, hashName: p.hashName, timed: p.timed, base: p.base}
	q.views.Store(p.views.Load())
	return q
}
