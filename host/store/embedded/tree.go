package embedded

import "math/rand/v2"

// tree is an ordered map whose versions share what they have in common: a copy
// of the struct is a snapshot that later changes do not touch. It is a treap,
// which keeps itself balanced by random priorities and needs little code.
//
// Changes are made under an edit. Nodes that belong to the edit are changed in
// place, all others are copied first, so that a batch copies each node of its
// paths once.
type tree[K, V any] struct {
	root    *node[K, V]
	compare func(a, b K) int
}

type node[K, V any] struct {
	key         K
	value       V
	priority    uint64
	owner       *edit
	left, right *node[K, V]
}

// edit is the identity of one batch of changes. It has a size, so that no two
// have the same address.
type edit struct{ _ byte }

func (n *node[K, V]) own(e *edit) *node[K, V] {
	if n.owner == e {
		return n
	}
	c := *n
	c.owner = e
	return &c
}

func (t *tree[K, V]) get(key K) (value V, ok bool) {
	for n := t.root; n != nil; {
		switch c := t.compare(key, n.key); {
		case c == 0:
			return n.value, true
		case c < 0:
			n = n.left
		default:
			n = n.right
		}
	}
	return value, false
}

func (t *tree[K, V]) put(e *edit, key K, value V) { t.root = t.insert(e, t.root, key, value) }

func (t *tree[K, V]) insert(e *edit, n *node[K, V], key K, value V) *node[K, V] {
	if n == nil {
		return &node[K, V]{key: key, value: value, priority: rand.Uint64(), owner: e}
	}
	n = n.own(e)
	switch c := t.compare(key, n.key); {
	case c == 0:
		n.value = value
	case c < 0:
		n.left = t.insert(e, n.left, key, value)
		if l := n.left; l.priority > n.priority { // l is owned: it is on the path
			n.left, l.right = l.right, n
			return l
		}
	default:
		n.right = t.insert(e, n.right, key, value)
		if r := n.right; r.priority > n.priority {
			n.right, r.left = r.left, n
			return r
		}
	}
	return n
}

func (t *tree[K, V]) delete(e *edit, key K) {
	if _, ok := t.get(key); ok { // nothing is copied for a key that is not there
		t.root = t.remove(e, t.root, key)
	}
}

func (t *tree[K, V]) remove(e *edit, n *node[K, V], key K) *node[K, V] {
	switch c := t.compare(key, n.key); {
	case c == 0:
		return merge(e, n.left, n.right)
	case c < 0:
		n = n.own(e)
		n.left = t.remove(e, n.left, key)
	default:
		n = n.own(e)
		n.right = t.remove(e, n.right, key)
	}
	return n
}

// merge joins two trees of which all keys of a are smaller than those of b.
func merge[K, V any](e *edit, a, b *node[K, V]) *node[K, V] {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a = a.own(e)
		a.right = merge(e, a.right, b)
		return a
	default:
		b = b.own(e)
		b.left = merge(e, a, b.left)
		return b
	}
}

// ascend calls visit for all keys from key on, in order, until it returns
// false.
func (t *tree[K, V]) ascend(key K, visit func(K, V) bool) { t.walk(t.root, key, visit) }

func (t *tree[K, V]) walk(n *node[K, V], key K, visit func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if t.compare(n.key, key) < 0 {
		return t.walk(n.right, key, visit)
	}
	return t.walk(n.left, key, visit) && visit(n.key, n.value) && t.walk(n.right, key, visit)
}
