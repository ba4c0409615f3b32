// Package webhook is the built-in analysis plugin "webhook": an HTTP endpoint of
// the operator's own that measures a canary, or judges it.
//
// sdk/plugin serves [Analysis]. One evaluation is one POST of what the host knows
// of the step, and one small JSON object in return. What it promises: an answer
// counts when it is whole, names the rollout and the step that were asked about,
// and says pass, breach or a finite number. Everything else is MISSING with the
// reason first in the detail. The raw answer is the evidence.
//
// Secrets come from the plugin's environment and go to hosts that the environment
// names; a rollout can only name the variable.
package webhook
