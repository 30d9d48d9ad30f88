// The types of the API, from its OpenAPI document. Write them anew, with the reviewed document:
// VOUCH_WRITE_OPENAPI=1 .venv/bin/pytest tests/service/test_openapi.py -k reviewed
export as namespace Api;
export type AbsentShare = {
  share: number;
  origin: "request" | "key" | "adopted" | "bundle";
  adopted_at?: string | null;
  basis: "absent_labels" | "hidden_labels" | "hidden_trained_labels" | "near_misses_of_views";
};
export type AbsentState = {
  assumed: number;
  expected: number | null;
  adopted: number | null;
  adopted_at: string | null;
  estimated: number | null;
  interval: [number, number] | null;
  n_served: number;
  used: number;
  is_hint: boolean;
  basis: "absent_labels" | "hidden_labels" | "hidden_trained_labels" | "near_misses_of_views";
  warning: string | null;
};
export type Activation = {
  gallery: string;
  bundle_id: string;
  previous_id: string;
  persisted: boolean;
};
export type AdoptedShare = {
  share: number;
};
export type AskedOn = {
  day: string;
  n: number;
};
export type AssessmentAnswer = {
  request_id: string;
  gallery: string;
  query: Query;
  quality: Quality;
  bundle: BundleState;
};
export type AssessmentForm = {
  image: string;
  alpha?: number;
};
export type BatchAnswer = {
  request_id: string;
  gallery: string;
  items: (BatchItem)[];
};
export type BatchEntry = {
  id: string;
  label?: string | null;
  metadata?: Record<string, unknown>;
};
export type BatchItem = {
  index: number;
  file_name: string | null;
  status: number;
  answer: SearchAnswer | null;
  problem: Problem | null;
};
export type BatchItemWritten = {
  index: number;
  id: string;
  status: number;
  written: ItemWritten | null;
  problem: Problem | null;
};
export type BatchWritten = {
  request_id: string;
  gallery: string;
  items: (BatchItemWritten)[];
};
export type BundleCalibration = {
  basis: "evaluation" | "calibration" | null;
  n_queries: number | null;
  recall_at_1: number | null;
  match_share: number | null;
  match_error: number | null;
  match_error_bound: number | null;
  max_error: number | null;
  false_match_rate: number | null;
  false_match_bound: number | null;
  flagged_share: number | null;
  absent_flagged_share: number | null;
  written_at: string;
  queries: string;
  delta: number;
};
export type BundleList = {
  serving: string;
  bundles: (BundleRecord)[];
  refused: string | null;
};
export type BundleRecord = {
  reason_code?: ReasonCode | null;
  id: string;
  published_at: string;
  release: string | null;
  n_items: number | null;
  n_labels: number | null;
  calibration: BundleCalibration | null;
  reason: string | null;
};
export type BundleState = {
  id: string;
  calibration: CalibrationState;
};
export type CalibrationReport = {
  status: "valid" | "drifting" | "stale" | "missing";
  n_queries: number;
  queries: "held_out_images" | "left_out_items" | "views_of_items" | "captions" | null;
  alpha: number | null;
  coverage: number | null;
  max_error: number | null;
  max_false_match_rate: number | null;
  delta: number | null;
  absent: AbsentState | null;
  drift: DriftReport;
  order: "similarity" | "probability" | null;
  sources: (string)[];
  matches: (MatchPromise)[];
  levels: (LevelPromise)[];
  point: OperatingPoint | null;
  top1_ece: number | null;
  reliability: (ReliabilityBin)[];
  risk_coverage: (OperatingPoint)[];
  result_sets: (ResultSetOutcome)[];
  outlier_auroc: Record<string, number>;
  feedback: FeedbackSummary | null;
  errors_over_time: ErrorsOverTime | null;
  correction: FeedbackCorrection | null;
  written_at?: string | null;
};
export type CalibrationRun = {
  state: "none" | "running" | "succeeded" | "failed";
  started_at: string | null;
  ended_at: string | null;
  bundle_id: string | null;
  reason: string | null;
  n_item_queries: number | null;
};
export type CalibrationState = {
  reason_code?: ReasonCode | null;
  status: "valid" | "drifting" | "stale" | "missing";
  n_queries: number;
  reason: string | null;
};
export type CalibrationWanted = {
  max_error?: number | null;
  max_false_match_rate?: number | null;
  expected_absent?: number | null;
  alpha?: number | null;
  coverage?: number | null;
};
export type CaseForgotten = {
  query_id: string;
};
export type CaseList = {
  cases: (ReviewCase)[];
  next_after: number | null;
};
export type ChangedAnswer = {
  query_id: string;
  at: string;
  reason: "outlier" | "first_item" | "promise" | "probability";
  old: SaidAnswer;
  new: SaidAnswer;
  image_url: string | null;
};
export type CountedShare = {
  n: number;
  share: number | null;
  interval: [number, number];
};
export type DecidedNeighbour = {
  id: string;
  label: string | null;
  similarity: number;
  match_probability: number | null;
};
export type Decision = {
  number: number;
  query_id: string;
  decision: "this_item" | "not_this_item" | "none_of_these" | "that_item" | "new";
  item_id: string | null;
  label: string | null;
  reviewer: string | null;
  comment: string | null;
  bundle: string;
  decided_at: string;
  undone_at: string | null;
  selection: "volunteered" | "ordered" | "drawn";
  draw_probability?: number | null;
};
export type DecisionAnswer = {
  reason_code?: ReasonCode | null;
  request_id: string;
  gallery: string;
  verdict: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  reason: string | null;
  guaranteed: boolean;
  roll_up: RollUp | null;
  no_match_probability: number | null;
  absent: AbsentShare | null;
  query: Query;
  neighbours: (DecidedNeighbour)[];
  result_set: ResultSet | null;
  bundle: BundleState;
  timing_ms: Record<string, number>;
};
export type DecisionList = {
  decisions: (Decision)[];
  next_after: number | null;
};
export type DecisionRequest = {
  alpha?: number | null;
  coverage?: number | null;
  expected_absent?: number | null;
  source?: string | null;
  mean: (number)[] | string;
  variance?: (number)[] | string | null;
  features?: (number)[] | string | null;
  outlier_score?: number | null;
  encoder_fingerprint?: string | null;
  neighbours: (Neighbour)[];
};
export type DecisionsImported = {
  n_new: number;
  n_known: number;
  problems: (ImportProblem)[];
};
export type DriftReport = {
  reason_code?: ReasonCode | null;
  reason: string | null;
  n_served: number;
  log_capital: number;
  drifted: boolean;
  n_streams: number;
  n_alarmed: number;
};
export type EmbeddingAnswer = {
  request_id: string;
  gallery: string;
  query: Query;
  direction: (number)[];
  variance: (number)[];
  concentration: number;
  spherical_variance: number;
  outlier_score: number | null;
  encoder: EncoderState;
  bundle: BundleState;
};
export type EncoderState = {
  fingerprint: string;
  provider: string;
  dim: number;
  posterior: string;
};
export type EnrolRequest = {
  label: string;
  query_ids?: (string)[] | null;
  item_ids?: Record<string, string>;
  metadata?: Record<string, unknown>;
  reviewer?: string | null;
};
export type Enrolled = {
  request_id: string;
  gallery: string;
  group: string;
  label: string;
  items: (EnrolledItem)[];
};
export type EnrolledItem = {
  query_id: string;
  item_id: string;
  existed: boolean;
  version: number;
  number: number;
};
export type ErrorsOverTime = {
  max_error: number;
  audit_share: number;
  n_asked: number;
  n_reviewed: number;
  n_wrong: number;
  error?: number | null;
  error_interval: [number, number];
  log_evidence: number;
  alarm: boolean;
};
export type Explanation = {
  plan: "exact" | "filter_first" | "search_first";
  estimated_share: number;
  indexes: Record<string, "bundle" | "memory" | "none">;
};
export type Facet = {
  field: string;
  comparison: "eq" | "has";
  n_items: number;
  n_values: number;
  least: number | null;
  greatest: number | null;
  values: (FacetValue)[];
};
export type FacetList = {
  reason_code?: ReasonCode | null;
  gallery: string;
  bundle_id: string;
  facets: (Facet)[];
  reason?: string | null;
};
export type FacetValue = {
  value: string | number | boolean;
  n_items: number;
};
export type FeedbackAnswer = {
  number: number;
  query_id: string;
  decision: "this_item" | "not_this_item" | "none_of_these" | "that_item" | "new";
  item_id: string | null;
  correct: boolean | null;
  rank: number | null;
  match_probability: number | null;
  audited: boolean;
  item?: ItemWritten | null;
};
export type FeedbackCorrection = {
  n: number;
  confirmed: number;
  n_drawn?: number;
  n_ordered?: number;
  n_others: number;
  applied: boolean;
  slope: number;
  intercept: number;
  log_loss_before: number;
  log_loss_after: number;
};
export type FeedbackRequest = {
  query_id: string;
  decision?: "this_item" | "not_this_item" | "none_of_these" | "that_item" | "new" | null;
  item_id?: string | null;
  correct?: boolean | null;
  reviewer?: string | null;
  comment?: string | null;
  item?: ItemOfQuery | null;
};
export type FeedbackSummary = {
  n: number;
  probability: number;
  share: number;
};
export type FieldError = {
  pointer: string;
  detail: string;
};
export type FoundItem = {
  id: string;
  label: string | null;
  match_probability: number | null;
  thumbnail_url: string | null;
};
export type GalleryChange = {
  title?: string | null;
  description?: string | null;
};
export type GalleryDetail = {
  name: string;
  title: string;
  description: string;
  created_at: string | null;
  n_items: number;
  n_labels: number;
  labels: (string)[];
  bundle: BundleState;
  encoder: EncoderState;
  text: TextState | null;
  calibration: Record<string, unknown> | null;
  metrics: Record<string, unknown> | null;
  outcome: GalleryOutcome;
  samples: (Sample)[];
  record_url: string | null;
  image_origins: (string)[];
};
export type GalleryDropped = {
  gallery: string;
};
export type GalleryList = {
  galleries: (GalleryName)[];
};
export type GalleryMap = {
  gallery: string;
  bundle_id: string;
  n_items: number;
  n_passing: number;
  n_shown: number;
  variance_shares: (number)[];
  colour_by: string;
  colours: (MapColour)[];
  rows: string;
  x: string;
  y: string;
  codes: string;
};
export type GalleryName = {
  name: string;
  title: string;
  n_items: number | null;
  bundle_id: string;
};
export type GalleryOutcome = {
  basis: "evaluation" | "calibration" | null;
  n_queries: number | null;
  recall_at_1: number | null;
  match_share: number | null;
  match_error: number | null;
  match_error_bound: number | null;
  max_error: number | null;
  false_match_rate: number | null;
  false_match_bound: number | null;
  flagged_share: number | null;
  absent_flagged_share: number | null;
  lines: (OutcomeLine)[];
};
export type GalleryRename = {
  name: string;
};
export type GalleryUsage = {
  limit: number;
  used: number;
};
export type GroupSize = {
  size: number;
  n_groups: number;
};
export type ImportProblem = {
  query_id: string | null;
  detail: string;
};
export type ItemBatchForm = {
  items: string;
  images: (string)[];
};
export type ItemChange = {
  label?: string | null;
  metadata?: Record<string, unknown>;
};
export type ItemDetail = {
  id: string;
  label: string | null;
  metadata: Record<string, unknown>;
  thumbnail_url: string | null;
  preview_url?: string | null;
};
export type ItemForm = {
  label?: string;
  metadata?: string;
  image: string;
};
export type ItemList = {
  gallery: string;
  bundle_id: string;
  n_items: number;
  n_passing: number | null;
  items: (ItemDetail)[];
  next_cursor: string | null;
};
export type ItemOfQuery = {
  id: string;
  label?: string | null;
  metadata?: Record<string, unknown>;
};
export type ItemWithDuplicates = {
  item: ItemDetail;
  duplicates: (NearItem)[];
};
export type ItemWritten = {
  request_id: string;
  gallery: string;
  id: string;
  existed: boolean;
  version: number;
};
export type LabelErrorList = {
  gallery: string;
  bundle_id: string;
  n_items: number;
  n_examined: number;
  n_unranked: number;
  items: (PossibleLabelError)[];
  next_cursor: string | null;
};
export type LabelList = {
  gallery: string;
  bundle_id: string;
  n_labels: number;
  labels: (string)[];
  next_after: string | null;
};
export type LeaseEnded = {
  query_id: string;
  ended: boolean;
};
export type LeaseRequest = {
  reviewer: string;
  limit?: number;
  seconds?: number;
  reasons?: ("ambiguous" | "absent" | "alien" | "contradicted" | "random")[] | null;
};
export type LeasedCase = {
  case: ReviewCase;
  until: string;
};
export type Leases = {
  leases: (LeasedCase)[];
};
export type LevelPromise = {
  level: string;
  matches: (MatchPromise)[];
};
export type Live = {
  status?: "live";
};
export type MapColour = {
  value: string | number | boolean | null;
  least: number | null;
  greatest: number | null;
  n_items: number;
};
export type MapItem = {
  id: string;
  label: string | null;
  metadata: Record<string, unknown>;
  thumbnail_url: string | null;
  preview_url?: string | null;
  row: number;
};
export type MapItems = {
  gallery: string;
  bundle_id: string;
  items: (MapItem)[];
};
export type MatchPromise = {
  reason_code?: ReasonCode | null;
  size_class: "one" | "few" | "many";
  n_labels: number;
  threshold: number | null;
  point: OperatingPoint | null;
  reason: string | null;
};
export type NearDuplicateList = {
  gallery: string;
  bundle_id: string;
  n_items: number;
  n_examined: number;
  n_unranked: number;
  items: (ItemWithDuplicates)[];
  next_cursor: string | null;
};
export type NearItem = {
  id: string;
  label: string | null;
  metadata: Record<string, unknown>;
  thumbnail_url: string | null;
  preview_url?: string | null;
  similarity: number;
};
export type Neighbour = {
  id: string;
  label?: string | null;
  similarity?: number | null;
  vector?: (number)[] | string | null;
};
export type NewGallery = {
  name: string;
  like?: string | null;
  title?: string;
  description?: string;
};
export type OperatingPoint = {
  threshold: number;
  coverage: number;
  error: number;
  error_bound: number;
  false_match_rate: number | null;
  false_match_bound: number | null;
};
export type OperatingPointAnswer = {
  reason_code?: ReasonCode | null;
  max_error: number;
  point: OperatingPoint | null;
  reason: string | null;
};
export type OperatorDecision = {
  gallery: string;
  absent_share: number;
  adopted_at: string | null;
  alarmed: (string)[];
  persisted: boolean;
};
export type OutOfDistribution = {
  reason_code?: ReasonCode | null;
  flag: boolean | null;
  reason: string | null;
  p_value: number | null;
  alpha: number;
  method: string;
};
export type OutcomeLine = {
  code: string;
  severity: "fact" | "warning" | "failure";
  parameters: Record<string, number | string | null>;
  sentence: string;
};
export type OutlierChange = {
  old: boolean | null;
  new: boolean | null;
  n: number;
};
export type PictureState = {
  value: number;
  percentile: number;
};
export type PossibleLabelError = {
  item: ItemDetail;
  suggested_label: string;
  confidence: number;
  neighbours: (NearItem)[];
};
export type ProbabilityChange = {
  n: number;
  mean: number | null;
  interval: [number, number];
};
export type Problem = {
  type: string;
  title: string;
  status: number;
  detail: string;
  instance: string;
  code: string;
  request_id: string;
  errors?: (FieldError)[] | null;
};
export type ProviderShare = {
  nodes: number;
  share: number;
};
export type Quality = {
  hints: (QualityHint)[];
  measures: Record<string, number>;
};
export type QualityHint = {
  code: string;
  measure: string;
  value: number;
  advice: string;
};
export type Query = {
  id: string;
  uncertainty: Uncertainty;
  ood: OutOfDistribution;
  image: QueryImage | null;
  text: QueryText | null;
};
export type QueryImage = {
  format: string;
  width: number;
  height: number;
  warnings: (string)[];
};
export type QueryText = {
  n_tokens: number;
  warnings: (string)[];
};
export type Ready = {
  status?: "ready";
  galleries: (ReadyGallery)[];
  cache: string;
  decoder_sandbox: (string)[];
  processes?: number;
};
export type ReadyGallery = {
  name: string;
  bundle_id: string;
  encoder_fingerprint: string;
  provider: string;
  placement: Record<string, ProviderShare> | null;
  batch_size: number;
  canary_ms: number;
  canary_age_s: number;
};
export type ReasonCode = {
  code: string;
  parameters: Record<string, unknown>;
};
export type ReasonCount = {
  reason: "outlier" | "first_item" | "promise" | "probability";
  n: number;
};
export type ReliabilityBin = {
  n: number;
  probability: number;
  share: number;
  weight: number;
};
export type Result = {
  rank: number;
  id: string;
  similarity: number;
  similarity_std: number | null;
  match_probability: number | null;
  rank_stability: number | null;
  rank_confidence: number | null;
  variance: number;
  label: string | null;
  metadata: Record<string, unknown>;
  thumbnail_url: string | null;
  preview_url?: string | null;
};
export type ResultSet = {
  reason_code?: ReasonCode | null;
  items: (SetItem)[];
  coverage: number;
  promised: boolean;
  promised_for: ("one" | "few" | "many")[];
  reason: string | null;
};
export type ResultSetOutcome = {
  coverage: number;
  promised: boolean;
  promised_for: ("one" | "few" | "many")[];
  covered: number;
  mean_size: number;
};
export type ReviewCase = {
  number: number;
  query_id: string;
  reason: "ambiguous" | "absent" | "alien" | "contradicted" | "random";
  drawn: boolean;
  draw_probability: number | null;
  state: "open" | "settled";
  verdict: string;
  found: (FoundItem)[];
  no_match_probability: number | null;
  image_url: string | null;
  reviewers: number;
  bundle: string;
  kept_at: string;
  settled_at: string | null;
};
export type ReviewCount = {
  reason: "ambiguous" | "absent" | "alien" | "contradicted" | "random";
  state: "open" | "settled";
  n: number;
};
export type ReviewSummary = {
  counts: (ReviewCount)[];
  reasons: ("ambiguous" | "absent" | "alien" | "contradicted" | "random")[];
  image: "none" | "thumbnail" | "original";
  random_share: number;
  retention_s: number;
  reviewers: number;
};
export type RollUp = {
  level: string;
  label: string;
  probability: number;
};
export type SaidAnswer = {
  verdict: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  item_id: string | null;
  name: string | null;
  match_probability: number | null;
  outlier: boolean | null;
};
export type Sample = {
  id: string;
  caption: string;
  belongs: boolean;
  image_url: string;
  thumbnail_url: string;
};
export type SearchAnswer = {
  reason_code?: ReasonCode | null;
  request_id: string;
  gallery: string;
  verdict: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  reason: string | null;
  guaranteed: boolean;
  roll_up: RollUp | null;
  no_match_probability: number | null;
  absent: AbsentShare | null;
  query: Query;
  order: "similarity" | "probability";
  results: (Result)[];
  explain: Explanation | null;
  result_set: ResultSet | null;
  next_cursor: string | null;
  audit: boolean;
  bundle: BundleState;
  cache: "hit" | "miss";
  timing_ms: Record<string, number>;
};
export type SearchBatchForm = {
  limit?: number;
  filter?: string;
  group_by?: "label";
  duplicate_similarity?: number;
  alpha?: number;
  coverage?: number;
  expected_absent?: number;
  source?: string;
  filter_means?: "show" | "known";
  order?: "similarity" | "probability";
  on_uncertain?: "answer" | "refuse";
  images: (string)[];
};
export type SearchForm = {
  limit?: number;
  filter?: string;
  group_by?: "label";
  duplicate_similarity?: number;
  alpha?: number;
  coverage?: number;
  expected_absent?: number;
  source?: string;
  filter_means?: "show" | "known";
  order?: "similarity" | "probability";
  on_uncertain?: "answer" | "refuse";
  image: string;
};
export type SearchRequest = {
  limit?: number;
  filter?: Record<string, unknown> | string | null;
  group_by?: "label" | null;
  duplicate_similarity?: number | null;
  alpha?: number | null;
  coverage?: number | null;
  expected_absent?: number | null;
  source?: string | null;
  filter_means?: "show" | "known";
  order?: "similarity" | "probability" | null;
  on_uncertain?: "answer" | "refuse";
  image_base64: string;
};
export type SearchUsage = {
  limit: number;
  used: number;
  period_s: number;
  resets_in_s: number;
};
export type SetItem = {
  id: string;
  label: string | null;
};
export type ShadowReport = {
  gallery: string;
  state: "running" | "ended";
  reason: string | null;
  bundle_id: string;
  live_bundle_id: string;
  share: number;
  persisted: boolean;
  since: string;
  ended_at: string | null;
  n_compared: number;
  n_waiting: number;
  n_dropped: number;
  n_failed: number;
  verdicts: (VerdictChange)[];
  outliers: (OutlierChange)[];
  outlier_old: CountedShare;
  outlier_new: CountedShare;
  same_first: CountedShare;
  changed: CountedShare;
  reasons: (ReasonCount)[];
  probability_change: ProbabilityChange;
  recent: (ChangedAnswer)[];
};
export type ShadowRequest = {
  bundle_id: string;
  share?: number | null;
};
export type SimilarAnswer = {
  reason_code?: ReasonCode | null;
  request_id: string;
  gallery: string;
  item: ItemDetail;
  verdict: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  reason: string;
  uncertainty: Uncertainty;
  results: (Result)[];
  explain: Explanation | null;
  bundle: BundleState;
  timing_ms: Record<string, number>;
};
export type TextSearchRequest = {
  limit?: number;
  filter?: Record<string, unknown> | string | null;
  group_by?: "label" | null;
  duplicate_similarity?: number | null;
  alpha?: number | null;
  coverage?: number | null;
  expected_absent?: number | null;
  source?: string | null;
  filter_means?: "show" | "known";
  order?: "similarity" | "probability" | null;
  on_uncertain?: "answer" | "refuse";
  text: string;
};
export type TextState = {
  fingerprint: string;
  context_length: number;
  posterior: string;
  calibration: CalibrationState;
};
export type Uncertainty = {
  value: number | null;
  percentile: number | null;
  level: "low" | "medium" | "high" | null;
  epistemic: number | null;
  aleatoric: PictureState | null;
  method: string;
};
export type UnknownGroup = {
  id: string;
  n: number;
  p_same: number;
  medoid: string;
  first_asked_at: string;
  last_asked_at: string;
  members: (UnknownMember)[];
};
export type UnknownGroups = {
  gallery: string;
  bundle_id: string;
  n_queries: number;
  n_grouped: number;
  n_groups: number;
  precision: number;
  n_labels: number;
  asked: (AskedOn)[];
  sizes: (GroupSize)[];
  groups: (UnknownGroup)[];
};
export type UnknownMember = {
  query_id: string;
  p_same: number;
  asked_at: string;
  image_url: string | null;
};
export type Usage = {
  key: string | null;
  name: string | null;
  scope: string;
  galleries: (string)[] | null;
  rate_limit: string | null;
  searches: SearchUsage | null;
  created_galleries: GalleryUsage | null;
  max_items: number | null;
};
export type VectorSearchRequest = {
  limit?: number;
  filter?: Record<string, unknown> | string | null;
  group_by?: "label" | null;
  duplicate_similarity?: number | null;
  alpha?: number | null;
  coverage?: number | null;
  expected_absent?: number | null;
  source?: string | null;
  filter_means?: "show" | "known";
  order?: "similarity" | "probability" | null;
  on_uncertain?: "answer" | "refuse";
  mean: (number)[] | string;
  variance?: (number)[] | string | null;
  features?: (number)[] | string | null;
  outlier_score?: number | null;
  encoder_fingerprint?: string | null;
};
export type VerdictChange = {
  old: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  new: "match" | "ambiguous" | "no_match" | "out_of_distribution" | "not_calibrated";
  n: number;
};
export interface Operations {
  "GET /livez": {
    answer: Live;
  };
  "GET /metrics": {
    answer: unknown;
  };
  "GET /readyz": {
    answer: Ready;
  };
  "GET /v1/galleries": {
    answer: GalleryList;
  };
  "POST /v1/galleries": {
    json: NewGallery;
    answer: GalleryDetail;
  };
  "DELETE /v1/galleries/{gallery}": {
    path: {
      gallery: string;
    };
    query: {
      confirm: string;
    };
    answer: GalleryDropped;
  };
  "GET /v1/galleries/{gallery}": {
    path: {
      gallery: string;
    };
    answer: GalleryDetail;
  };
  "PATCH /v1/galleries/{gallery}": {
    path: {
      gallery: string;
    };
    json: GalleryChange;
    answer: GalleryDetail;
  };
  "POST /v1/galleries/{gallery}/assess": {
    path: {
      gallery: string;
    };
    form: AssessmentForm;
    answer: AssessmentAnswer;
  };
  "GET /v1/galleries/{gallery}/bundles": {
    path: {
      gallery: string;
    };
    answer: BundleList;
  };
  "POST /v1/galleries/{gallery}/bundles/rollback": {
    path: {
      gallery: string;
    };
    answer: Activation;
  };
  "POST /v1/galleries/{gallery}/bundles/{bundle_id}/activate": {
    path: {
      gallery: string;
      bundle_id: string;
    };
    answer: Activation;
  };
  "GET /v1/galleries/{gallery}/calibration": {
    path: {
      gallery: string;
    };
    query?: {
      order?: "similarity" | "probability";
      kind?: "image" | "text";
      curve?: boolean;
    };
    answer: CalibrationReport;
  };
  "POST /v1/galleries/{gallery}/calibration": {
    path: {
      gallery: string;
    };
    json: CalibrationWanted;
    answer: CalibrationRun;
  };
  "DELETE /v1/galleries/{gallery}/calibration/absent-share": {
    path: {
      gallery: string;
    };
    answer: OperatorDecision;
  };
  "POST /v1/galleries/{gallery}/calibration/absent-share": {
    path: {
      gallery: string;
    };
    json: AdoptedShare;
    answer: OperatorDecision;
  };
  "POST /v1/galleries/{gallery}/calibration/acknowledge": {
    path: {
      gallery: string;
    };
    answer: OperatorDecision;
  };
  "GET /v1/galleries/{gallery}/calibration/operating-points": {
    path: {
      gallery: string;
    };
    query: {
      max_error: number;
      expected_absent?: number;
      source?: string;
      order?: "similarity" | "probability";
      kind?: "image" | "text";
    };
    answer: OperatingPointAnswer;
  };
  "GET /v1/galleries/{gallery}/calibration/run": {
    path: {
      gallery: string;
    };
    answer: CalibrationRun;
  };
  "POST /v1/galleries/{gallery}/compact": {
    path: {
      gallery: string;
    };
    answer: Activation;
  };
  "POST /v1/galleries/{gallery}/decide": {
    path: {
      gallery: string;
    };
    json: DecisionRequest;
    answer: DecisionAnswer;
  };
  "POST /v1/galleries/{gallery}/embed": {
    path: {
      gallery: string;
    };
    form: AssessmentForm;
    answer: EmbeddingAnswer;
  };
  "GET /v1/galleries/{gallery}/facets": {
    path: {
      gallery: string;
    };
    query?: {
      limit?: number;
    };
    answer: FacetList;
  };
  "GET /v1/galleries/{gallery}/feedback": {
    path: {
      gallery: string;
    };
    query?: {
      after?: number;
      limit?: number;
    };
    answer: DecisionList;
  };
  "POST /v1/galleries/{gallery}/feedback": {
    path: {
      gallery: string;
    };
    json: FeedbackRequest;
    answer: FeedbackAnswer;
  };
  "DELETE /v1/galleries/{gallery}/feedback/{number}": {
    path: {
      number: number;
      gallery: string;
    };
    answer: Decision;
  };
  "GET /v1/galleries/{gallery}/items": {
    path: {
      gallery: string;
    };
    query?: {
      limit?: number;
      cursor?: string;
      filter?: string;
    };
    answer: ItemList;
  };
  "POST /v1/galleries/{gallery}/items": {
    path: {
      gallery: string;
    };
    form: ItemBatchForm;
    answer: BatchWritten;
  };
  "DELETE /v1/galleries/{gallery}/items/{item_id}": {
    path: {
      item_id: string;
      gallery: string;
    };
    answer: ItemWritten;
  };
  "GET /v1/galleries/{gallery}/items/{item_id}": {
    path: {
      item_id: string;
      gallery: string;
    };
    answer: ItemDetail;
  };
  "PATCH /v1/galleries/{gallery}/items/{item_id}": {
    path: {
      item_id: string;
      gallery: string;
    };
    json: ItemChange;
    answer: ItemWritten;
  };
  "PUT /v1/galleries/{gallery}/items/{item_id}": {
    path: {
      item_id: string;
      gallery: string;
    };
    form: ItemForm;
    answer: ItemWritten;
  };
  "GET /v1/galleries/{gallery}/items/{item_id}/similar": {
    path: {
      gallery: string;
      item_id: string;
    };
    query?: {
      limit?: number;
      filter?: string;
      group_by?: "label";
      duplicate_similarity?: number;
    };
    answer: SimilarAnswer;
  };
  "GET /v1/galleries/{gallery}/items/{item_id}/thumbnail": {
    path: {
      item_id: string;
      gallery: string;
    };
    query?: {
      size?: "thumbnail" | "preview";
    };
    answer: unknown;
  };
  "GET /v1/galleries/{gallery}/label-errors": {
    path: {
      gallery: string;
    };
    query?: {
      confidence?: number;
      order?: "id" | "confidence";
      limit?: number;
      cursor?: string;
    };
    answer: LabelErrorList;
  };
  "GET /v1/galleries/{gallery}/labels": {
    path: {
      gallery: string;
    };
    query?: {
      limit?: number;
      after?: string;
    };
    answer: LabelList;
  };
  "GET /v1/galleries/{gallery}/map": {
    path: {
      gallery: string;
    };
    query?: {
      colour_by?: string;
      filter?: string;
    };
    answer: GalleryMap;
  };
  "GET /v1/galleries/{gallery}/map/items": {
    path: {
      gallery: string;
    };
    query: {
      bundle_id: string;
      rows: string;
    };
    answer: MapItems;
  };
  "GET /v1/galleries/{gallery}/near-duplicates": {
    path: {
      gallery: string;
    };
    query?: {
      threshold?: number;
      order?: "id" | "similarity";
      limit?: number;
      cursor?: string;
    };
    answer: NearDuplicateList;
  };
  "POST /v1/galleries/{gallery}/rename": {
    path: {
      gallery: string;
    };
    json: GalleryRename;
    answer: GalleryDetail;
  };
  "GET /v1/galleries/{gallery}/review": {
    path: {
      gallery: string;
    };
    query?: {
      reason?: "ambiguous" | "absent" | "alien" | "contradicted" | "random";
      state?: "open" | "settled";
      after?: number;
      limit?: number;
    };
    answer: CaseList;
  };
  "GET /v1/galleries/{gallery}/review/export": {
    path: {
      gallery: string;
    };
    query: {
      format: "label_studio" | "label_studio_interface" | "fiftyone";
      state?: "open" | "settled";
      after?: number;
      limit?: number;
    };
    answer: unknown;
  };
  "POST /v1/galleries/{gallery}/review/import": {
    path: {
      gallery: string;
    };
    json: (Record<string, unknown>)[];
    answer: DecisionsImported;
  };
  "POST /v1/galleries/{gallery}/review/leases": {
    path: {
      gallery: string;
    };
    json: LeaseRequest;
    answer: Leases;
  };
  "GET /v1/galleries/{gallery}/review/summary": {
    path: {
      gallery: string;
    };
    answer: ReviewSummary;
  };
  "DELETE /v1/galleries/{gallery}/review/{query_id}": {
    path: {
      query_id: string;
      gallery: string;
    };
    answer: CaseForgotten;
  };
  "GET /v1/galleries/{gallery}/review/{query_id}": {
    path: {
      query_id: string;
      gallery: string;
    };
    answer: ReviewCase;
  };
  "GET /v1/galleries/{gallery}/review/{query_id}/image": {
    path: {
      query_id: string;
      gallery: string;
    };
    answer: unknown;
  };
  "DELETE /v1/galleries/{gallery}/review/{query_id}/lease": {
    path: {
      query_id: string;
      gallery: string;
    };
    query: {
      reviewer: string;
    };
    answer: LeaseEnded;
  };
  "GET /v1/galleries/{gallery}/samples/{sample_id}": {
    path: {
      sample_id: string;
      gallery: string;
    };
    query?: {
      size?: "original" | "thumbnail";
    };
    answer: unknown;
  };
  "POST /v1/galleries/{gallery}/search": {
    path: {
      gallery: string;
    };
    form: SearchForm;
    answer: SearchAnswer;
  };
  "POST /v1/galleries/{gallery}/search/batch": {
    path: {
      gallery: string;
    };
    form: SearchBatchForm;
    answer: BatchAnswer;
  };
  "POST /v1/galleries/{gallery}/search/json": {
    path: {
      gallery: string;
    };
    json: SearchRequest;
    answer: SearchAnswer;
  };
  "GET /v1/galleries/{gallery}/search/next": {
    path: {
      gallery: string;
    };
    query: {
      cursor: string;
    };
    answer: SearchAnswer;
  };
  "POST /v1/galleries/{gallery}/search/raw": {
    path: {
      gallery: string;
    };
    query?: {
      limit?: number;
      filter?: string;
      group_by?: "label";
      duplicate_similarity?: number;
      alpha?: number;
      coverage?: number;
      expected_absent?: number;
      source?: string;
      filter_means?: "show" | "known";
      order?: "similarity" | "probability";
      on_uncertain?: "answer" | "refuse";
    };
    answer: SearchAnswer;
  };
  "POST /v1/galleries/{gallery}/search/text": {
    path: {
      gallery: string;
    };
    json: TextSearchRequest;
    answer: SearchAnswer;
  };
  "POST /v1/galleries/{gallery}/search/vector": {
    path: {
      gallery: string;
    };
    json: VectorSearchRequest;
    answer: SearchAnswer;
  };
  "DELETE /v1/galleries/{gallery}/shadow": {
    path: {
      gallery: string;
    };
    answer: ShadowReport;
  };
  "GET /v1/galleries/{gallery}/shadow": {
    path: {
      gallery: string;
    };
    answer: ShadowReport;
  };
  "PUT /v1/galleries/{gallery}/shadow": {
    path: {
      gallery: string;
    };
    json: ShadowRequest;
    answer: ShadowReport;
  };
  "GET /v1/galleries/{gallery}/unknown": {
    path: {
      gallery: string;
    };
    query?: {
      precision?: number;
      limit?: number;
    };
    answer: UnknownGroups;
  };
  "POST /v1/galleries/{gallery}/unknown/{group}/enrol": {
    path: {
      group: string;
      gallery: string;
    };
    query?: {
      precision?: number;
    };
    json: EnrolRequest;
    answer: Enrolled;
  };
  "GET /v1/usage": {
    answer: Usage;
  };
}
