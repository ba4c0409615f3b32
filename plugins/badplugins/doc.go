// Package badplugins is a library of real plugin programs that are wrong on
// purpose, and the tools to hand them to a host.
//
// Tests of packages that run plugins use it: [Build] compiles all of them into
// one program, once; [Program.File] makes the file of one; [Catalog] gives files
// to a host. It promises that a behaviour stays what its name says, and that a
// plugin does no harm outside of its own process, its directories and the host
// that started it.
//
// # Behaviours
//
// How a whole plugin starts, describes itself and ends. "sdk" and "raw" are
// right, and do what calls tell them to (see below).
//
//	name             what it does
//	sdk              serves deeds with the SDK
//	raw              serves deeds with go-plugin alone: no limits, no recovery, no lifeline
//	exit             exits with 0 at once
//	crash            exits with 3 and says which attempt it was (file named by COUNT)
//	crash-later      starts well, and exits with 4 after 200 ms
//	words            prints, explains itself on stderr, exits with 3
//	silent           prints nothing, for ever
//	banner           prints a banner before its handshake, then works
//	garbage          prints lines that look a little like handshakes
//	lines-before     writes 70 KB and 1 MB lines to stdout before its handshake, then works
//	core-version     handshake of another version of go-plugin
//	old-protocol     handshake of plugin protocol 0
//	new-protocol     handshake of plugin protocol 9
//	net-rpc          handshake for net/rpc
//	elsewhere        handshake with a TCP address
//	not-listening    handshake, and nobody listens
//	not-accepting    handshake, listens, answers nothing
//	bombs            log lines on stderr that end a careless reader, then works
//	unimplemented    speaks gRPC and serves none of our services
//	describe-silent  never answers Describe
//	describe-large   describes itself in 64 MiB
//	many-abilities   a million capabilities
//	deep-schema      a schema of 9,000 levels
//	wrong-name       calls itself somebody else
//	wrong-kind       says it is a probe
//	wrong-version    has a version that is none
//	health-silent    never says how it is
//	health-flood     changes its health without end
//	configure-hangs  never answers Configure
//	many-violations  refuses configurations for a million reasons
//	stubborn         ignores SIGTERM, the lifeline, Drain and the end of serving
//	drain-hangs      uses the SDK and has a Drain that never returns
//
// What authors get wrong who use the SDK or know the protocol: each breaks one
// promise, and does whatever it is asked otherwise.
//
//	fickle           describes itself differently each time
//	configure-once   refuses an instance that it knows
//	deaf             waits half a minute, whatever its context says
//	crowded          panics when more than 4 calls are in it
//	trusting         panics when a request lacks what it usually has
//	fragile          the same in a goroutine of its own, which ends the process
//	parent           leaves a child behind
//	chatty           explains itself on stderr
//	leaky            keeps memory of each call, and a file and a goroutine of some
//	passes           an analysis that passes whatever it is asked
//	dice             a strategy that draws its weights
//	optimist         a probe that takes silence for health
//
// # Deeds
//
// What one call does: an analysis reads it in the query's text, with one
// argument behind it.
//
//	(none)           answers PASS, its process id as detail
//	slow D           answers after D
//	late [D]         answers 10 ms, or D, before its deadline
//	cancel           ends the call as canceled 5 ms before its deadline
//	panic            panics in the call
//	panic-goroutine  panics in another goroutine
//	exit             exits with 7
//	hang             never answers and looks at no deadline
//	stop             stops itself with SIGSTOP
//	fork             has a child that holds stdout and stderr, and answers with its process id
//	fork-setsid      the same, in a session of its own
//	fork-exit        both, and exits with 8
//	bombs            log lines as above
//	stderr N         N MiB, a line of 1 MiB and binary on stderr
//	stdout N         N MiB through os.Stdout
//	lines            70 KB and 1 MB lines on descriptor 1
//	hog              takes memory until the runtime gives up
//	spin             burns all processors
//	files            opens files until it gets no more, answers with how many
//	leave            leaves directories, pipes and links behind
//	env              answers with its environment
//	large N          answers with N MiB
//	nested N         answers with N groups in one another
//	error N          fails with N KiB of text
//	answer REASON    answers what must be refused for REASON, or must be missing
//	broker N         asks the host's broker for service N
//	broker-flood N   offers the host's broker N services
//
// A strategy reads the reason for which its plan must be refused in the scope:
// service/REASON.
package badplugins
