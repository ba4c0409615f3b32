// Command dona is the operator's command line of a Dodona host: it shows and
// changes what the host keeps (status, rollout, flag, policy, plugin), answers
// questions offline (bucket, explain) and runs the demonstration (demo). All of
// it lives below internal; this file only hands over the process.
package main

import (
	"context"
	"os"

	"github.com/dodona-project/dodona/cmd/dona/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:]))
}
