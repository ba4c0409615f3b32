package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/dodona-project/dodona/sdk/plugin/schema"
)

// InstanceFor makes the instance of one use of a plugin: the same use with the
// same configuration always gets the same id, on every host and after every
// restart.
func InstanceFor(use string, config *structpb.Struct) (Instance, error) {
	text, err := schema.JSON(config)
	if err != nil {
		return Instance{}, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d:%s", len(use), use)
	sum.Write(text)
	return Instance{ID: hex.EncodeToString(sum.Sum(nil)[:16]), Config: config}, nil
}
