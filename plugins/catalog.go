package plugins

// A Catalog finds plugins that are not built in. The host asks it from several
// goroutines.
type Catalog interface {
	// List names the plugins there are; it may take seconds. It is asked at the
	// start, and again when somebody asks for a plugin that is not known or for
	// all of them, at most once a second. A file whose kind cannot be told is
	// listed as KindUnknown, so that operators see it; Find says why.
	List() []ID
	// Find says what to run for a plugin. It is asked before every start, so
	// that a reload runs what is there now. An error keeps the plugin from
	// starting until it is reset or reloaded; its text is shown to operators.
	Find(id ID) (File, error)
}

// A File is a program that is a plugin.
type File struct {
	Path   string // absolute
	Args   []string
	Digest string // sha256:<hex> of what is at Path
	Source Source
}

// Source is where a plugin's program comes from.
type Source string

// The sources.
const (
	SourceBuiltin Source = "builtin" // the host's own program
	SourceFile    Source = "file"    // found by a Catalog
)

type noCatalog struct{}

func (noCatalog) List() []ID            { return nil }
func (noCatalog) Find(ID) (File, error) { return File{}, ErrUnknown }
