package embedded

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/dodona-project/dodona/host/store"
)

// Format is the number of the layout of the data file; docs/formats.md draws
// it. A program reads the formats up to its own and refuses newer ones.
const Format = 1

// Buckets and keys of the file.
var (
	bucketMeta    = []byte("meta")
	bucketRecords = []byte("records")
	bucketIndexes = []byte("indexes")
	bucketLogs    = []byte("logs")

	keyFormat  = []byte("format")
	keyProgram = []byte("program")
	keyHead    = []byte("head")
)

const programName = "dodona embedded store"

// Kinds of entries, as far as their checksums tell them apart.
const (
	kindRecord = 'r'
	kindIndex  = 'i'
	kindLog    = 'l'
	kindHead   = 'h'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the kind, the key and the rest of an entry, so that no entry
// can pass for another.
func checksum(kind byte, key, rest []byte) uint32 {
	return crc32.Update(keySum(kind, key), castagnoli, rest)
}

func keySum(kind byte, key []byte) uint32 {
	sum := crc32.Update(0, castagnoli, []byte{kind, byte(len(key) >> 8), byte(len(key))})
	return crc32.Update(sum, castagnoli, key)
}

// share is what an entry with this checksum adds to the digest of the file. The
// digest is a sum, so that entries can come and go in any order, and the
// shares are spread over 64 bits, so that no small set of them adds up to 0.
func share(kind byte, sum uint32) uint64 {
	x := uint64(kind)<<32 | uint64(sum)
	x = (x ^ x>>31) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// seal puts an entry's checksum in front of its rest and returns the checksum.
func seal(kind byte, key, rest []byte) (value []byte, sum uint32) {
	sum = checksum(kind, key, rest)
	value = make([]byte, 4+len(rest))
	binary.BigEndian.PutUint32(value, sum)
	copy(value[4:], rest)
	return value, sum
}

// unseal checks a value read from disk and returns its rest, not copied.
func unseal(kind byte, key, value []byte) (rest []byte, sum uint32, err error) {
	if len(value) < 4 {
		return nil, 0, fmt.Errorf("entry %.64q is cut off", key)
	}
	sum = checksum(kind, key, value[4:])
	if sum != binary.BigEndian.Uint32(value) {
		return nil, 0, fmt.Errorf("entry %.64q does not match its checksum", key)
	}
	return value[4:], sum, nil
}

// sealRecord is seal of a record's version and value, without an intermediate
// copy of them.
func sealRecord(key []byte, r store.Record) (value []byte, sum uint32) {
	value = make([]byte, 4+8+len(r.Value))
	binary.BigEndian.PutUint64(value[4:], r.Version)
	copy(value[12:], r.Value)
	sum = checksum(kindRecord, key, value[4:])
	binary.BigEndian.PutUint32(value, sum)
	return value, sum
}

// recordSum is the checksum that sealRecord gives r.
func recordSum(key []byte, r store.Record) uint32 {
	sum := crc32.Update(keySum(kindRecord, key), castagnoli, binary.BigEndian.AppendUint64(nil, r.Version))
	return crc32.Update(sum, castagnoli, r.Value)
}

func indexKey(index string, score uint64, member string) []byte {
	key := make([]byte, 0, 2+len(index)+8+len(member))
	key = binary.BigEndian.AppendUint16(key, uint16(len(index)))
	key = append(key, index...)
	key = binary.BigEndian.AppendUint64(key, score)
	return append(key, member...)
}

func parseIndexKey(key []byte) (k scoreKey, ok bool) {
	name, rest, ok := parseName(key)
	if !ok || len(rest) < 9 {
		return k, false
	}
	return scoreKey{index: name, score: binary.BigEndian.Uint64(rest), member: string(rest[8:])}, true
}

func logEntryKey(log string, seq uint64) []byte {
	key := make([]byte, 0, 2+len(log)+8)
	key = binary.BigEndian.AppendUint16(key, uint16(len(log)))
	key = append(key, log...)
	return binary.BigEndian.AppendUint64(key, seq)
}

func parseLogKey(key []byte) (k logKey, ok bool) {
	name, rest, ok := parseName(key)
	if !ok || len(rest) != 8 {
		return k, false
	}
	return logKey{log: name, seq: binary.BigEndian.Uint64(rest)}, true
}

func parseName(key []byte) (name string, rest []byte, ok bool) {
	if len(key) < 2 {
		return "", nil, false
	}
	n := int(binary.BigEndian.Uint16(key))
	if n == 0 || len(key) < 2+n {
		return "", nil, false
	}
	return string(key[2 : 2+n]), key[2+n:], true
}

// head is the entry that every commit rewrites: where the store stands, and a
// digest of all entries, so that one that is missing is noticed too.
type head struct {
	id       [16]byte // of this data, made at its creation
	revision uint64   // of the newest transaction on disk
	reserved uint64   // end of the block of revisions that may have been issued
	clock    int64    // unix nanoseconds of the store's clock
	digest   uint64
	entries  uint64 // records, index entries and log entries
}

const headLen = 16 + 5*8

func (h head) rest() []byte {
	rest := make([]byte, 0, headLen)
	rest = append(rest, h.id[:]...)
	for _, n := range []uint64{h.revision, h.reserved, uint64(h.clock), h.digest, h.entries} {
		rest = binary.BigEndian.AppendUint64(rest, n)
	}
	return rest
}

func parseHead(rest []byte) (h head, err error) {
	if len(rest) != headLen {
		return h, fmt.Errorf("head has %d bytes, %d are right", len(rest), headLen)
	}
	copy(h.id[:], rest)
	n := func(i int) uint64 { return binary.BigEndian.Uint64(rest[16+8*i:]) }
	h.revision, h.reserved, h.clock, h.digest, h.entries = n(0), n(1), int64(n(2)), n(3), n(4)
	return h, nil
}
