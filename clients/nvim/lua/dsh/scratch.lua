--- Buffers that show what a log says. It is data there: no file behind it, no modeline, no undo, and a syntax at
--- most, since what a person has set up for a filetype (language servers, formatters) is not meant for it.
local M = {}

--- The buffer of that name as we made it. What `:bdelete` leaves of one, or a session file (`:mksession`) makes of it,
--- has nothing but the name, and makes room for a new one.
---@param name string
---@return integer? buf
function M.find(name)
  for _, buf in ipairs(vim.api.nvim_list_bufs()) do
    if vim.api.nvim_buf_get_name(buf) == name then
      if vim.bo[buf].buftype ~= "" then
        return buf
      end
      vim.api.nvim_buf_delete(buf, { force = true })
    end
  end
end

---@class dsh.Scratch
---@field name string unique, of the form `dsh-…://…`
---@field session_id? string
---@field entry_id? string
---@field syntax? string

--- The buffer of that name, made when there is none.
---@param about dsh.Scratch
---@param lines string[]
---@return integer buf
function M.buffer(about, lines)
  local buf = M.find(about.name)
  if not buf then
    buf = vim.api.nvim_create_buf(false, true)
    vim.api.nvim_buf_set_name(buf, about.name)
    vim.bo[buf].modeline = false
    vim.bo[buf].undolevels = -1
    vim.bo[buf].bufhidden = "wipe"
    vim.bo[buf].syntax = about.syntax or ""
  end
  vim.b[buf].dsh_session = about.session_id
  vim.b[buf].dsh_entry = about.entry_id
  vim.bo[buf].modifiable = true
  vim.api.nvim_buf_set_lines(buf, 0, -1, false, lines)
  vim.bo[buf].modifiable = false
  return buf
end

---@param lines string[]
---@param room integer
local function widest(lines, room)
  local width = 0
  for _, line in ipairs(lines) do
    -- Counting the cells of a line of megabytes takes long, and it is too wide anyway.
    width = math.max(width, #line > 4 * room and room or vim.fn.strdisplaywidth(line))
    if width >= room then
      return room
    end
  end
  return width
end

---@param win integer
local function read_only_window(win)
  local options = vim.wo[win][0] -- what the window shows later keeps its own
  options.wrap = true
  options.linebreak = true
  options.conceallevel = 0
  options.foldenable = false
  options.spell = false
end

--- Show a buffer in a float in the middle of the editor, as large as its text or as there is room; `q`, `<Esc>` and
--- leaving it close it.
---@param buf integer
---@param title string
function M.float(buf, title)
  local lines = vim.api.nvim_buf_get_lines(buf, 0, -1, false)
  local room = math.max(1, math.min(100, vim.o.columns - 6))
  local width = math.min(room, math.max(widest(lines, room), vim.fn.strdisplaywidth(title) + 2))
  local win = vim.api.nvim_open_win(buf, true, {
    relative = "editor",
    width = width,
    height = 1,
    row = 1,
    col = math.floor((vim.o.columns - width - 2) / 2),
    style = "minimal",
    border = "rounded",
    title = " " .. title .. " ",
  })
  read_only_window(win)
  local most = math.max(1, vim.o.lines - vim.o.cmdheight - 6)
  local height = vim.api.nvim_win_text_height(win, { end_row = math.min(#lines, most) - 1 }).all
  height = math.min(height, most)
  vim.api.nvim_win_set_config(win, {
    relative = "editor",
    row = math.floor((vim.o.lines - height - 3) / 2),
    col = math.floor((vim.o.columns - width - 2) / 2),
    height = height,
  })
  local function close()
    if vim.api.nvim_win_is_valid(win) then
      vim.api.nvim_win_close(win, true)
    end
  end
  vim.keymap.set("n", "q", close, { buffer = buf, desc = "Close" })
  vim.keymap.set("n", "<Esc>", close, { buffer = buf, desc = "Close" })
  vim.api.nvim_create_autocmd("WinLeave", { buffer = buf, once = true, callback = close })
end

---@param win integer
local function takes_text(win)
  return vim.api.nvim_win_get_config(win).relative == ""
    and not vim.wo[win].winfixwidth
    and not vim.wo[win].winfixheight
    and vim.bo[vim.api.nvim_win_get_buf(win)].buftype == ""
end

--- Go to a window for text, not to a sidebar, a list or a terminal.
---@return boolean whether there is one
local function go_to_text_window()
  local windows = { vim.api.nvim_get_current_win(), vim.fn.win_getid(vim.fn.winnr("#")) }
  vim.list_extend(windows, vim.api.nvim_tabpage_list_wins(0))
  for _, win in ipairs(windows) do
    if win ~= 0 and takes_text(win) then
      vim.api.nvim_set_current_win(win)
      return true
    end
  end
  return false
end

--- Open windows that were asked for a while ago. Who types elsewhere by now stays there, since the keys are meant for
--- that place.
---@param open fun()
---@return boolean whether the person was taken along
function M.arrive(open)
  local here, mode = vim.api.nvim_get_current_win(), vim.api.nvim_get_mode().mode
  local types = not mode:find("^[nr]") or mode:find("^ni") ~= nil
  open()
  if types then
    vim.api.nvim_set_current_win(here)
  end
  return not types
end

--- Open a window for a buffer of ours: beside that of a text, or alone beside the sidebar.
---@param split string command that divides the window of a text
function M.new_window(split)
  if go_to_text_window() then
    vim.cmd(split)
  else
    vim.cmd("botright vnew")
    vim.bo.bufhidden = "wipe" -- ours comes in its place
  end
end

--- Show a buffer in the window where it is already, else in a new one beside the text.
---@param buf integer
---@param modifiers string of `:split`
function M.split(buf, modifiers)
  M.arrive(function()
    local win = vim.fn.bufwinid(buf)
    if win ~= -1 then
      vim.api.nvim_set_current_win(win)
      return
    end
    M.new_window(modifiers .. " split")
    vim.api.nvim_win_set_buf(0, buf)
    read_only_window(0)
  end)
  vim.keymap.set("n", "q", "<Cmd>bwipeout<CR>", { buffer = buf, desc = "Close" })
end

return M
