package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dodona-project/dodona/cmd/dona/internal/render"
	"github.com/dodona-project/dodona/host/limits"
	"github.com/dodona-project/dodona/sdk/dona/bucket"
)

// checkKey refuses what places no unit: a key that no flag can have gives a bucket
// too, of nothing.
func checkKey(key string) error {
	if service, ok := strings.CutPrefix(key, "@weights/"); ok {
		if err := limits.Service(service); err != nil {
			return usage("FLAG is %s, whose service %v", limits.Quote(key), err)
		}
		return nil
	}
	if err := limits.Name(key); err != nil {
		return usage("FLAG %v; or @weights/SERVICE", err)
	}
	return nil
}

func (a *app) bucketCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bucket UNIT FLAG",
		Short: "Show the bucket of a unit for a flag; asks no host",
		Long: `Show the bucket of a unit (a user, a session, a tenant) for a flag, and from
which percentage on the unit is in. It is computed here, by the same code as in
the SDK; no host is asked. The key under which weights place a unit is
@weights/SERVICE.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := positional("UNIT", "FLAG"+anyForm)(cmd, args); err != nil {
				return err
			}
			if err := bucket.CheckUnit(args[0]); err != nil {
				return usage("UNIT: %v", err)
			}
			return checkKey(args[1])
		},
		RunE: func(_ *cobra.Command, args []string) error {
			unit, flag := args[0], args[1]
			n := bucket.Bucket(unit, flag)
			from := n/bucket.PerPercent + 1
			if unit == "" {
				from = 100
			}
			if a.json {
				return a.object(struct {
					Unit          string `json:"unit"`
					Flag          string `json:"flag"`
					Bucket        uint32 `json:"bucket"`
					InFromPercent uint32 `json:"in_from_percent"`
				}{unit, flag, n, from})
			}
			return a.lines(
				fmt.Sprintf("bucket %d of %d", n, uint32(bucket.Buckets)),
				fmt.Sprintf("%q is in the cohort of %s from %d %% on", render.Clean(unit), render.Clean(flag), from))
		},
	}
}
