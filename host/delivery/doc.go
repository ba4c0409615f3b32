// Package delivery brings a build to where requests are: artifacts, the
// releases made of them, and the deployments that move a service's traffic to
// one.
//
// An artifact is a build with its digest, a release binds an artifact, a variant
// and a configuration; both never change. A deployment waits until the release's
// variant has endpoints, and then moves the traffic by its strategy. The host
// starts no processes: something else does, and its endpoints register.
//
// [Step] decides: a pure function of a deployment, what the service looks like
// and the time. The [Controller] is the thin edge around it: once a second it
// reads each live deployment and writes what Step decided in one store
// transaction together with the weights, or the start of the rollout, and the
// audit entry. Any host may tick; every tick re-reads what is, and a restart goes
// on where the record says. The end of a rollout ends its deployment in the same
// transaction, through [Controller.RolloutEnded].
//
// Callers are host/api (RegisterArtifact, CreateRelease, Start, the lists) and
// the host's wiring (New, Run). What moves a deployment is in docs/delivery.md.
package delivery
