package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// verify walks the pages of a bbolt file before bbolt sees it. bbolt trusts
// what it maps: a damaged page number or length makes it panic, loop or leave
// out entries. After verify it cannot: every page that its newest head reaches
// is where it should be, is reached once, and holds exactly what its lengths
// say, in order. What the entries hold is checked by load.
//
// Both of bbolt's heads have to be whole. It keeps two, writes them in turn and
// falls back to the older one when the newer is damaged, which would silently
// take back a commit that was acknowledged. A crash cannot tear a head: it fits
// into one sector.
func verify(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	v := &verifier{file: f, size: info.Size(), seen: make(map[uint64]bool)}
	if v.size == 0 {
		return fmt.Errorf("is empty")
	}
	head, err := v.heads()
	if err != nil {
		return err
	}
	if head.pages > uint64(v.size)/uint64(v.page) {
		return fmt.Errorf("is truncated: has %d bytes, its head tells of %d pages of %d", v.size, head.pages, v.page)
	}
	v.pages = head.pages
	return v.tree(head.root, nil, nil, 0)
}

// Layout of bbolt's pages, in the byte order of the machine, as bbolt has it.
const (
	pageHeader  = 16
	elementSize = 16
	bucketSize  = 16
	metaSize    = 64

	flagBranch = 0x01
	flagLeaf   = 0x02

	leafBucket = 0x01

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = ^uint64(0)

	maxDepth = 64 // of the tree of pages, far above what a file can have
)

var native = binary.NativeEndian

type verifier struct {
	file  *os.File
	size  int64
	page  int
	pages uint64
	seen  map[uint64]bool
}

type boltHead struct{ root, freelist, pages, txid uint64 }

// heads checks both heads and returns the newer.
func (v *verifier) heads() (boltHead, error) {
	buf := make([]byte, pageHeader+metaSize)
	if _, err := v.file.ReadAt(buf, 0); err != nil {
		return boltHead{}, v.unread(err)
	}
	first, err := parseBoltHead(buf)
	if err != nil {
		return boltHead{}, fmt.Errorf("first head: %w", err)
	}
	v.page = int(native.Uint32(buf[pageHeader+8:]))
	if v.page < 1024 || v.page > 1<<16 || v.page&(v.page-1) != 0 {
		return boltHead{}, fmt.Errorf("has pages of %d bytes", v.page)
	}
	if _, err := v.file.ReadAt(buf, int64(v.page)); err != nil {
		return boltHead{}, v.unread(err)
	}
	second, err := parseBoltHead(buf)
	if err != nil {
		return boltHead{}, fmt.Errorf("second head: %w", err)
	}
	newer, older := first, second
	if second.txid > first.txid {
		newer, older = second, first
	}
	// 2 apart: the first commit to a backup, where bbolt puts the newer head
	// first whatever its number is, may replace that one.
	if gap := newer.txid - older.txid; gap != 1 && gap != 2 {
		return boltHead{}, fmt.Errorf("has heads of commits %d and %d, which do not follow one another", older.txid, newer.txid)
	}
	if newer.freelist != noFreelist {
		return boltHead{}, fmt.Errorf("keeps a list of free pages, which this program does not")
	}
	return newer, nil
}

func (v *verifier) unread(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("is truncated: has %d bytes", v.size)
	}
	return err
}

func parseBoltHead(buf []byte) (h boltHead, err error) {
	m := buf[pageHeader:]
	if native.Uint32(m) != boltMagic {
		return h, fmt.Errorf("is not a bbolt file")
	}
	if n := native.Uint32(m[4:]); n != boltVersion {
		return h, fmt.Errorf("has version %d of bbolt's format, this program knows version %d", n, boltVersion)
	}
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSize-8])
	if sum.Sum64() != native.Uint64(m[metaSize-8:]) {
		return h, fmt.Errorf("does not match its checksum")
	}
	return boltHead{root: native.Uint64(m[16:]), freelist: native.Uint64(m[32:]), pages: native.Uint64(m[40:]), txid: native.Uint64(m[48:])}, nil
}

// tree checks the page at id and all below it. Its keys lie in [from, to); nil
// is no bound.
func (v *verifier) tree(id uint64, from, to []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: is %d levels deep", id, depth)
	}
	buf, err := v.read(id)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if err := v.content(buf, from, to, depth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// read returns a page with its overflow, and marks all of it as seen.
func (v *verifier) read(id uint64) ([]byte, error) {
	buf := make([]byte, v.page)
	if id < 2 || id >= v.pages {
		return nil, fmt.Errorf("is outside of the file's pages")
	}
	if _, err := v.file.ReadAt(buf, int64(id)*int64(v.page)); err != nil {
		return nil, v.unread(err)
	}
	if native.Uint64(buf) != id {
		return nil, fmt.Errorf("says it is page %d", native.Uint64(buf))
	}
	overflow := uint64(native.Uint32(buf[12:]))
	if overflow >= v.pages-id {
		return nil, fmt.Errorf("runs over the end of the file's pages")
	}
	for n := id; n <= id+overflow; n++ {
		if v.seen[n] {
			return nil, fmt.Errorf("is in use twice")
		}
		v.seen[n] = true
	}
	if overflow > 0 {
		buf = make([]byte, (1+int(overflow))*v.page)
		if _, err := v.file.ReadAt(buf, int64(id)*int64(v.page)); err != nil {
			return nil, v.unread(err)
		}
	}
	return buf, nil
}

// content checks one page, whole or inside a bucket's entry.
func (v *verifier) content(buf []byte, from, to []byte, depth int) error {
	inline := depth < 0
	flags, count := native.Uint16(buf[8:]), int(native.Uint16(buf[10:]))
	if flags != flagBranch && flags != flagLeaf || inline && flags != flagLeaf {
		return fmt.Errorf("has flags %#x", flags)
	}
	if flags == flagBranch && count == 0 {
		return fmt.Errorf("is a branch without entries")
	}
	elements := pageHeader + count*elementSize
	if elements > len(buf) {
		return fmt.Errorf("has %d entries, more than fit", count)
	}
	// Data follow the elements without gaps: each starts where the last ended.
	end := elements
	var last []byte
	type child struct {
		id  uint64
		key []byte
	}
	var children []child
	for i := range count {
		at := pageHeader + i*elementSize
		e := buf[at:]
		var pos, ksize, vsize int
		if flags == flagLeaf {
			pos, ksize, vsize = int(native.Uint32(e[4:])), int(native.Uint32(e[8:])), int(native.Uint32(e[12:]))
		} else {
			pos, ksize = int(native.Uint32(e)), int(native.Uint32(e[4:]))
		}
		if at+pos != end || ksize == 0 || ksize > len(buf)-end || vsize > len(buf)-end-ksize {
			return fmt.Errorf("entry %d is not where it should be", i)
		}
		key, value := buf[end:end+ksize], buf[end+ksize:end+ksize+vsize]
		end += ksize + vsize
		if i > 0 && bytes.Compare(last, key) >= 0 || i == 0 && from != nil && bytes.Compare(key, from) < 0 || to != nil && bytes.Compare(key, to) >= 0 {
			return fmt.Errorf("entry %d is out of order", i)
		}
		last = key
		switch {
		case flags == flagBranch:
			children = append(children, child{native.Uint64(e[8:]), key})
		case native.Uint32(e) == leafBucket && !inline:
			if err := v.bucket(value); err != nil {
				return fmt.Errorf("bucket %.64q: %w", key, err)
			}
		case native.Uint32(e) != 0:
			return fmt.Errorf("entry %d has flags %#x", i, native.Uint32(e))
		}
	}
	// No more pages than the data need: bbolt frees as many as the page says.
	if need := max(1, (end+v.page-1)/v.page); !inline && len(buf) != need*v.page {
		return fmt.Errorf("spans %d pages, its entries need %d", len(buf)/v.page, need)
	}
	for i, c := range children {
		bound := to
		if i+1 < len(children) {
			bound = children[i+1].key
		}
		if err := v.tree(c.id, c.key, bound, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// bucket checks the entry of a bucket and what is in it.
func (v *verifier) bucket(value []byte) error {
	if len(value) < bucketSize {
		return fmt.Errorf("is cut off")
	}
	if root := native.Uint64(value); root != 0 {
		if len(value) != bucketSize {
			return fmt.Errorf("has pages of its own and entries beside them")
		}
		return v.tree(root, nil, nil, 0)
	}
	if len(value) < bucketSize+pageHeader {
		return fmt.Errorf("is cut off")
	}
	page := value[bucketSize:]
	if native.Uint32(page[12:]) != 0 {
		return fmt.Errorf("runs over its end")
	}
	return v.content(page, nil, nil, -1)
}
