// Package wire holds the facts on which a plugin process and the host must
// agree before they can talk: the handshake cookie, the protocol version, the
// names of environment variables and the size of a message. Both sides import
// it (sdk/plugin and plugins); a plugin author needs it only to write a plugin
// without the SDK. It holds constants and does nothing.
package wire

const (
	// CookieKey and CookieValue make a plugin refuse to run by hand. They are
	// no secret and protect nothing.
	CookieKey   = "DONA_PLUGIN"
	CookieValue = "dona-plugin-v1"

	// ProtocolVersion is the wire major of plugin/v1. It changes only when an
	// old plugin could no longer be understood.
	ProtocolVersion = 1

	// PluginSet is the key under which a plugin serves all its services.
	PluginSet = "dona"

	// LifelineEnv names the inherited descriptor of a pipe that nobody ever
	// writes to: it reads end of file when the host is gone.
	LifelineEnv = "DONA_PLUGIN_LIFELINE"

	// LogLevelEnv is the least level the host wants to read: trace, debug,
	// info, warn or error.
	LogLevelEnv = "DONA_PLUGIN_LOG_LEVEL"

	// CapabilityVerdict is said by an analysis that gives verdicts of its own.
	CapabilityVerdict = "verdict"

	// MaxMessageLen bounds one message in either direction, in bytes.
	MaxMessageLen = 16 << 20

	// DefaultConcurrency is what DescribeReply.max_concurrency 0 means, and
	// MaxConcurrency the most that a plugin can ask for.
	DefaultConcurrency = 64
	MaxConcurrency     = 1024
)
