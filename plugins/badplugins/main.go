package badplugins

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/dodona-project/dodona/plugins"
)

// A self is the plugin that this process is told to be.
type self struct {
	id plugins.ID
}

// behaviours are the whole plugins, by family: how one starts, describes
// itself and serves. What those that serve do in a call is in deeds.
var behaviours = map[string]func(self){
	"sdk": serveSDK,
	"raw": serveRaw,

	"exit":          func(self) { os.Exit(0) },
	"crash":         crash,
	"crash-later":   crashLater,
	"silent":        func(self) { forever() },
	"banner":        banner,
	"words":         words,
	"garbage":       garbage,
	"lines-before":  linesBefore,
	"core-version":  handshake("9|1|unix|%s|grpc|"),
	"old-protocol":  handshake("1|0|unix|%s|grpc|"),
	"new-protocol":  handshake("1|9|unix|%s|grpc|"),
	"net-rpc":       handshake("1|1|unix|%s|netrpc|"),
	"elsewhere":     handshake("1|1|tcp|127.0.0.1:1|grpc|"),
	"not-listening": handshake("1|1|unix|%s|grpc|"),
	"not-accepting": notAccepting,
	"bombs":         bombs,

	"describe-silent": describeSilent,
	"wrong-name":      wrongName,
	"wrong-kind":      wrongKind,
	"wrong-version":   wrongVersion,
	"many-abilities":  manyAbilities,
	"describe-large":  describeLarge,
	"deep-schema":     deepSchema,
	"health-silent":   healthSilent,
	"health-flood":    healthFlood,
	"many-violations": manyViolations,
	"configure-hangs": configureHangs,
	"unimplemented":   unimplemented,

	"stubborn":    stubborn,
	"drain-hangs": drainHangs,

	"fickle":         fickle,
	"configure-once": configureOnce,
	"deaf":           author(deaf),
	"crowded":        author(crowded()),
	"trusting":       author(trusting),
	"fragile":        author(fragile),
	"parent":         author(parent()),
	"chatty":         author(chatty),
	"leaky":          author(leaky()),
	"passes":         author(passes),
	"dice":           dice,
	"optimist":       optimist,
}

// Main is the program: it becomes the plugin that its arguments name, or one of
// Builtins or the watchdog of a host that has it as its own program. The one
// behaviour without a host is the intruder's.
func Main() {
	plugins.Dispatch(Builtins())
	if len(os.Args) == 3 && os.Args[1] == "intrude" {
		intrude(os.Args[2])
		return
	}
	if len(os.Args) != 3 {
		usage()
	}
	run, known := behaviours[os.Args[1]]
	kind, name, ok := strings.Cut(os.Args[2], "/")
	if !known || !ok {
		usage()
	}
	run(self{id: plugins.ID{Kind: plugins.Kind(kind), Name: name}})
}

func usage() {
	fmt.Fprintf(os.Stderr, "usage: badplugin BEHAVIOUR KIND/NAME; behaviours: %s\n", strings.Join(Names(), " "))
	os.Exit(2)
}

// forever hangs without burning time. It is no deadlock to the runtime.
func forever() {
	for {
		time.Sleep(time.Hour)
	}
}
