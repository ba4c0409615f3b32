package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

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
	buf := make([]byte, 0, 256) // most fit, and it stays on the stack
	buf = strconv.AppendInt(buf, int64(len(use)), 10)
	buf = append(buf, ':')
	buf = append(buf, use...)
	buf = append(buf, text...)
	sum := sha256.Sum256(buf)
	var id [32]byte
	hex.Encode(id[:], sum[:len(id)/2])
	return Instance{ID: string(id[:]), Config: config}, nil
}
