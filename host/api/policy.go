package api

import (
	"cmp"
	"time"

	controlplanev1 "github.com/dodona-project/dodona/proto/controlplane/v1"
	donav1 "github.com/dodona-project/dodona/proto/dona/v1"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
)

// Role is what a caller may be to an RPC. A caller has the roles that its
// identity gives it; the developer on loopback (local:dev) has all of them.
type Role string

const (
	Anyone   Role = "anyone"   // who has any identity of the trust domain; liveness only
	Workload Role = "workload" // an application: svc/<service>
	Worker   Role = "worker"   // an egress worker: <environment>/worker/<id>
	Checker  Role = "checker"  // a checker outside the hosts: <environment>/checker/<id>
	Admin    Role = "admin"    // an operator: admin/<name>
	Host     Role = "host"     // another host: host/<id>
)

// Rule is one row of the table: who may call an RPC, how much and how often.
type Rule struct {
	Roles    []Role
	Object   string  // what of the request has to be the caller's own, when it is no operator
	MaxBytes int     // of one message received
	Rate     float64 // calls a second and identity
	Burst    int
	Cap      time.Duration // of a unary call, whatever deadline its client set; 0 = unaryCap
	DevOnly  bool          // served with --dev only
	Class    Class         // what goes on when memory runs out
}

// Class says how long a call is served while memory runs out.
type Class int

const (
	Outcomes Class = iota - 1 // until 90 % of the memory limit, but each second one only from 80 % on
	Ordinary                  // a stream until 80 %, a call until 90 %
	Control                   // until 95 %: what operators do, and what has to be on record
	Vital                     // always: heartbeats, liveness
)

// unaryCap bounds a unary call whose rule says nothing else.
const unaryCap = 10 * time.Second

// Deadline is the longest that a unary call takes.
func (r Rule) Deadline() time.Duration { return cmp.Or(r.Cap, unaryCap) }

const (
	smallMessage = 256 << 10
	statsMessage = 4 << 20
	observations = 1 << 20
	listMessage  = 1<<20 + 64<<10 // a list or a configuration, and what is around it
)

var (
	admins    = []Role{Admin}
	workloads = []Role{Workload}
	checkers  = []Role{Checker}
	workers   = []Role{Worker}
)

func admin() Rule {
	return Rule{Roles: admins, MaxBytes: smallMessage, Rate: 100, Burst: 400, Class: Control}
}

// published carries a whole list or configuration.
func published() Rule {
	r := admin()
	r.MaxBytes, r.Rate, r.Burst = listMessage, 10, 40
	return r
}

// imported is a list that takes several transactions.
func imported() Rule {
	r := published()
	r.Cap = time.Minute
	return r
}

// ofWorker is a call that keeps a worker going.
func ofWorker(rate float64, burst int) Rule {
	return Rule{Roles: workers, Object: "worker_id", MaxBytes: smallMessage, Rate: rate, Burst: burst, Class: Vital}
}

func liveness() Rule {
	return Rule{Roles: []Role{Anyone}, MaxBytes: smallMessage, Rate: 100, Burst: 400, Class: Vital}
}

func reflected() Rule {
	r := admin()
	r.DevOnly = true
	return r
}

// reload starts a process, so it may not be asked for as often as the rest, and
// it may take longer: a start has up to 22 s until it is proven, and may have to
// wait for one that is under way.
func reload() Rule {
	r := admin()
	r.Rate, r.Burst, r.Cap = 1, 60, time.Minute
	return r
}

// whole reads all of the store, so it is slow and not for every second.
func whole() Rule {
	r := admin()
	r.Rate, r.Burst, r.Cap = 1, 10, time.Minute
	return r
}

// Policy is the table. An RPC without a row is denied, and a test compares the
// table with the services that are registered.
var Policy = map[string]Rule{
	donav1.ControlPlane_RegisterEndpoint_FullMethodName: {Roles: workloads, Object: "service", MaxBytes: smallMessage, Rate: 500, Burst: 2000, Class: Vital},
	donav1.ControlPlane_WatchConfig_FullMethodName:      {Roles: []Role{Workload, Admin}, Object: "caller_service", MaxBytes: smallMessage, Rate: 2000, Burst: 10_000},
	donav1.ControlPlane_ReportStats_FullMethodName:      {Roles: workloads, Object: "calls[].caller_service", MaxBytes: statsMessage, Rate: 2000, Burst: 4000, Class: Outcomes},

	donav1.ControlPlane_SetFlag_FullMethodName:          admin(),
	donav1.ControlPlane_StartRollout_FullMethodName:     admin(),
	donav1.ControlPlane_ControlRollout_FullMethodName:   admin(),
	donav1.ControlPlane_RegisterArtifact_FullMethodName: admin(),
	donav1.ControlPlane_CreateRelease_FullMethodName:    admin(),
	donav1.ControlPlane_StartDeployment_FullMethodName:  admin(),
	donav1.ControlPlane_SetIngress_FullMethodName:       admin(),
	donav1.ControlPlane_SetSharedService_FullMethodName: admin(),
	donav1.ControlPlane_SetServicePolicy_FullMethodName: admin(),
	donav1.ControlPlane_GetStatus_FullMethodName:        admin(),
	donav1.ControlPlane_WatchStatus_FullMethodName:      admin(),
	donav1.ControlPlane_ListServices_FullMethodName:     admin(),
	donav1.ControlPlane_ListArtifacts_FullMethodName:    admin(),
	donav1.ControlPlane_ListReleases_FullMethodName:     admin(),
	donav1.ControlPlane_GetAttestation_FullMethodName:   admin(),

	controlplanev1.CheckerControlPlane_RegisterChecker_FullMethodName:    {Roles: checkers, Object: "checker_id", MaxBytes: smallMessage, Rate: 100, Burst: 400},
	controlplanev1.CheckerControlPlane_StreamCheckTasks_FullMethodName:   {Roles: checkers, Object: "checker_id", MaxBytes: smallMessage, Rate: 100, Burst: 400},
	controlplanev1.CheckerControlPlane_ReportObservations_FullMethodName: {Roles: checkers, Object: "checker_id", MaxBytes: observations, Rate: 2000, Burst: 4000},

	controlplanev1.WorkerControlPlane_RegisterWorker_FullMethodName:      ofWorker(10, 40),
	controlplanev1.WorkerControlPlane_WatchSnapshots_FullMethodName:      ofWorker(10, 40),
	controlplanev1.WorkerControlPlane_AcknowledgeSnapshot_FullMethodName: ofWorker(200, 400),
	controlplanev1.WorkerControlPlane_ReportRuntime_FullMethodName:       ofWorker(200, 400),
	controlplanev1.WorkerControlPlane_AcknowledgeDrain_FullMethodName:    ofWorker(200, 4_096),
	controlplanev1.WorkerControlPlane_ReportOutcomes_FullMethodName:      {Roles: workers, Object: "worker_id", MaxBytes: observations, Rate: 200, Burst: 400},

	controlplanev1.PoolAdmin_PublishConfig_FullMethodName:      published(),
	controlplanev1.PoolAdmin_GetConfig_FullMethodName:          admin(),
	controlplanev1.PoolAdmin_SetUpstreamEnabled_FullMethodName: admin(),
	controlplanev1.PoolAdmin_SetRouting_FullMethodName:         admin(),
	controlplanev1.PoolAdmin_ImportProxies_FullMethodName:      imported(),
	controlplanev1.PoolAdmin_ListProxies_FullMethodName:        admin(),
	controlplanev1.PoolAdmin_ListWorkers_FullMethodName:        admin(),
	controlplanev1.PoolAdmin_BeginDrain_FullMethodName:         admin(),
	controlplanev1.PoolAdmin_Extract_FullMethodName:            {Roles: admins, MaxBytes: smallMessage, Rate: 1_000, Burst: 4_000, Class: Control},
	controlplanev1.PoolAdmin_GetAvailability_FullMethodName:    admin(),

	donav1.HostAdmin_ListPlugins_FullMethodName:    admin(),
	donav1.HostAdmin_ReloadPlugin_FullMethodName:   reload(),
	donav1.HostAdmin_ResetPlugin_FullMethodName:    admin(),
	donav1.HostAdmin_TailPluginLogs_FullMethodName: admin(),
	donav1.HostAdmin_GetHost_FullMethodName:        admin(),
	donav1.HostAdmin_AdoptStore_FullMethodName:     admin(),
	donav1.HostAdmin_CheckStore_FullMethodName:     whole(),
	donav1.HostAdmin_BackupStore_FullMethodName:    whole(),
	donav1.HostAdmin_CreateToken_FullMethodName:    admin(),
	donav1.HostAdmin_RevokeToken_FullMethodName:    admin(),
	donav1.HostAdmin_RolloverCA_FullMethodName:     admin(),

	// All instances of a service are one identity: 10,000 of them renew SVIDs of an hour
	// 5.6 times a second, and some of them start at once.
	donav1.Identity_IssueSvid_FullMethodName: {Roles: []Role{Workload, Worker, Checker, Admin, Host}, Object: "service or path", MaxBytes: bootstrapMessage, Rate: 10, Burst: 600, Class: Control},

	grpc_health_v1.Health_Check_FullMethodName: liveness(),
	grpc_health_v1.Health_Watch_FullMethodName: liveness(),
	grpc_health_v1.Health_List_FullMethodName:  liveness(),

	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      reflected(),
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: reflected(),
}
